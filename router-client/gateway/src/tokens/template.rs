//! Chat templates of tokenizers: Jinja, with the functions of Hugging Face's library.

use super::python_json::tojson;
use crate::request::ApiRequest;
use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Template names in the environment.
const DEFAULT: &str = "default";
const TOOLS: &str = "tool_use";
/// Maximum recursion depth of a template.
const RECURSION_MAX: usize = 128;
/// Maximum instructions of the template engine for one conversation: about a second.
const INSTRUCTIONS_MAX: u64 = 10_000_000;

/// The chat template of a model.
#[derive(Debug)]
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    has_tools: bool,
    bos_token: String,
    eos_token: String,
}

impl ChatTemplate {
    /// Loads the template `own`, or the template in a `tokenizer_config.json`. Returns `None` if neither exists.
    pub(super) fn load(config: &Value, own: Option<String>) -> Result<Option<Self>, Error> {
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        environment.set_syntax(syntax.build()?);
        environment.set_recursion_limit(RECURSION_MAX);
        environment.set_fuel(Some(INSTRUCTIONS_MAX));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", |why: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, why))
        });
        environment.add_function("strftime_now", strftime_now);
        let mut has_tools = false;
        match (own, config.get("chat_template")) {
            (Some(text), _) => environment.add_template_owned(DEFAULT, text)?,
            (None, Some(Value::String(text))) => {
                environment.add_template_owned(DEFAULT, text.clone())?;
            }
            (None, Some(Value::Array(named))) => {
                for at in named {
                    let text = |key| at.get(key).and_then(Value::as_str).map(str::to_owned);
                    let (Some(name), Some(template)) = (text("name"), text("template")) else {
                        continue;
                    };
                    has_tools |= name == TOOLS;
                    environment.add_template_owned(name, template)?;
                }
            }
            _ => return Ok(None),
        }
        let token = |name| special_token(config.get(name));
        let bos_token = token("bos_token");
        let eos_token = token("eos_token");
        Ok(Some(Self { environment, has_tools, bos_token, eos_token }))
    }

    /// Renders the conversation to the text that the engine tokenizes. Returns `None` if it contains more than text, or
    /// if an option in it makes the engine's text unpredictable.
    pub(super) fn render(&self, request: &ApiRequest) -> Result<Option<String>, Error> {
        let body = &request.body;
        let flag = |name: &str| body.get(name).and_then(Value::as_bool);
        // Options with which only the engine can determine the prompt's text.
        let is_special = flag("continue_final_message") == Some(true)
            || ["chat_template", "documents"]
                .iter()
                .any(|at| body.get(*at).is_some_and(|at| !at.is_null()));
        let messages: Option<Vec<_>> = request.messages().iter().map(plain).collect();
        let (Some(messages), false) = (messages, is_special) else { return Ok(None) };
        let tools = body.get("tools").filter(|at| at.as_array().is_some_and(|at| !at.is_empty()));
        let name = if tools.is_some() && self.has_tools { TOOLS } else { DEFAULT };
        let template = self.environment.get_template(name)?;
        let mut given = Map::new();
        given.insert("messages".to_owned(), Value::Array(messages));
        given.insert("tools".to_owned(), tools.cloned().unwrap_or_default());
        let prompts = flag("add_generation_prompt").unwrap_or(true);
        given.insert("add_generation_prompt".to_owned(), Value::Bool(prompts));
        for (name, token) in [("bos_token", &self.bos_token), ("eos_token", &self.eos_token)] {
            given.insert(name.to_owned(), Value::String(token.clone()));
        }
        let own = body.get("chat_template_kwargs").and_then(Value::as_object);
        given.extend(own.into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())));
        let given = minijinja::Value::deserialize(Value::Object(given));
        let given = given.map_err(|at| Error::new(ErrorKind::CannotDeserialize, at.to_string()))?;
        template.render(given).map(Some)
    }
}

/// Converts a message to the form that templates expect: content as one text, arguments of tool calls as objects.
/// Returns `None` if the content has more than text.
fn plain(message: &Value) -> Option<Value> {
    let mut message = message.clone();
    if let Some(Value::Array(parts)) = message.get("content") {
        let text = |part: &Value| {
            let is_text = part.get("type").and_then(Value::as_str) == Some("text");
            part.get("text").filter(|_| is_text).and_then(Value::as_str).map(str::to_owned)
        };
        let texts: Option<Vec<_>> = parts.iter().map(text).collect();
        let text = Value::String(texts?.join("\n"));
        message.as_object_mut()?.insert("content".to_owned(), text);
    }
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        let parsed = arguments.as_str().and_then(|text| serde_json::from_str(text).ok());
        if let Some(parsed) = parsed {
            *arguments = parsed;
        }
    }
    Some(message)
}

/// The text of a special token, which is a string or an object with the string.
fn special_token(token: Option<&Value>) -> String {
    let content = |at: &Value| at.get("content").and_then(Value::as_str).map(str::to_owned);
    token.and_then(|at| at.as_str().map(str::to_owned).or_else(|| content(at))).unwrap_or_default()
}

/// The current date and time in UTC.
fn strftime_now(format: &str) -> Result<String, Error> {
    let now = Timestamp::now().to_zoned(TimeZone::UTC);
    let text = strtime::format(format, &now);
    text.map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Kind;
    use serde_json::json;

    fn render(template: &str, body: &Value) -> Result<Option<String>, String> {
        let config = json!({"chat_template": template, "bos_token": {"content": "<s>"}, "eos_token": "</s>"});
        let template = ChatTemplate::load(&config, None).expect("a template").expect("one");
        let request = ApiRequest::read(Kind::Chat, body.to_string().as_bytes()).expect("a request");
        template.render(&request).map_err(|error| error.to_string())
    }

    const TEMPLATE: &str = "{{ bos_token }}{% for message in messages %}[{{ message.role }}] {{ message['content'].strip() }}\
        {{ eos_token }}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}\
        {% if add_generation_prompt %}[assistant]{% endif %}{% if thinking %}<think>{% endif %}";

    #[test]
    fn a_conversation_becomes_text() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let body = json!({
            "model": "m", "messages": [{"role": "system", "content": " x "}, {"role": "user", "content": parts}],
            "tools": [{"type": "function", "function": {"name": "f", "b": 1, "a": [2, 3]}}],
            "chat_template_kwargs": {"thinking": true},
        });
        let expected = "<s>[system] x</s>[user] a\nb</s>\
            [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"b\": 1, \"a\": [2, 3]}}][assistant]<think>";
        assert_eq!(render(TEMPLATE, &body), Ok(Some(expected.to_owned())));
        let bare = json!({
            "model": "m", "messages": [{"role": "user", "content": "x"}], "add_generation_prompt": false,
        });
        assert_eq!(render(TEMPLATE, &bare), Ok(Some("<s>[user] x</s>".to_owned())));
    }

    #[test]
    fn calls_of_tools_are_objects() {
        let call =
            json!({"type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}});
        let body = json!({"model": "m", "messages": [{"role": "assistant", "tool_calls": [call]}]});
        let template = "{{ messages[0].tool_calls[0].function.arguments | tojson }}";
        assert_eq!(render(template, &body), Ok(Some("{\"a\": 1}".to_owned())));
    }

    #[test]
    fn what_only_engines_know_has_no_text() {
        let image = json!([{"type": "image_url", "image_url": {"url": "data:"}}]);
        let body = json!({"model": "m", "messages": [{"role": "user", "content": image}]});
        assert_eq!(render(TEMPLATE, &body), Ok(None));
        let body = json!({
            "model": "m", "messages": [{"role": "user", "content": "x"}], "continue_final_message": true,
        });
        assert_eq!(render(TEMPLATE, &body), Ok(None));
    }

    #[test]
    fn a_template_may_refuse_and_ask_for_the_date() {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "x"}]});
        let error = render("{{ raise_exception('roles must alternate') }}", &body).expect_err("no");
        assert!(error.contains("roles must alternate"), "{error}");
        let year = render("{{ strftime_now('%Y') }}", &body).expect("a date").expect("a text");
        assert!(year.parse::<u32>().is_ok_and(|year| year > 2_000), "{year}");
    }

    #[test]
    fn a_template_that_computes_for_too_long_is_stopped() {
        let endless =
            "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}";
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "a"}]});
        let error = render(endless, &body).expect_err("it is stopped");
        assert!(error.contains("fuel"), "{error}");
    }
}
