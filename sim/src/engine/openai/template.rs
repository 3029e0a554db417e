//! Chat templates: convert messages to one text.

use anyhow::{Context, Result, bail};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind, context};
use serde_json::{Map, Value as Json};

/// Name of the environment's only template.
const NAME: &str = "chat";
/// Default template for a model without one.
pub const SIMPLE: &str = "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}\n{% endfor %}\
                          {% if add_generation_prompt %}<|assistant|>\n{% endif %}";

/// A template, parsed like by Hugging Face's libraries.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    tokens: Map<String, Json>,
}

// === impl Template ===

impl Template {
    /// The template of a `tokenizer_config.json`, or [`SIMPLE`] if it has none.
    ///
    /// # Errors
    /// If the template cannot be read.
    pub fn of(config: &Json) -> Result<Self> {
        let source = match config.get("chat_template") {
            None | Some(Json::Null) => SIMPLE,
            Some(Json::String(source)) => source,
            Some(Json::Array(named)) => {
                let default = named.iter().find(|at| at["name"] == "default");
                let default = default.and_then(|at| at["template"].as_str());
                default.context("no chat template is named default")?
            }
            Some(_) => bail!("the chat template is no text"),
        };
        let mut tokens = Map::new();
        for name in ["bos_token", "eos_token", "pad_token", "unk_token"] {
            let token = config.get(name).map(|token| token.get("content").unwrap_or(token));
            if let Some(token @ Json::String(_)) = token {
                tokens.insert(name.to_owned(), token.clone());
            }
        }
        Ok(Self { environment: environment(source)?, tokens })
    }

    /// The text of a chat.
    ///
    /// # Errors
    /// If the template rejects the chat.
    pub fn render(&self, chat: &Chat<'_>) -> Result<String, Error> {
        let mut known = self.tokens.clone();
        known.extend(chat.further.clone());
        let given = context! {
            messages => Value::from(Serde(&chat.messages)),
            tools => Value::from(Serde(&chat.tools)),
            add_generation_prompt => chat.add_generation_prompt,
        };
        let known = Value::from(Serde(&known));
        self.environment.get_template(NAME)?.render(context! { ..given, ..known })
    }
}

/// Input of a template.
#[derive(Debug)]
pub struct Chat<'a> {
    /// The messages.
    pub messages: Vec<Json>,
    /// The tools, if any.
    pub tools: Option<&'a Json>,
    /// Whether the text ends with the beginning of the answer.
    pub add_generation_prompt: bool,
    /// Further variables from `chat_template_kwargs`.
    pub further: Map<String, Json>,
}

fn environment(source: &str) -> Result<Environment<'static>> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.context("set the syntax of chat templates")?);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |why: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, why))
    });
    environment.add_template_owned(NAME, source.to_owned()).context("read the chat template")?;
    Ok(environment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(config: &Json) -> String {
        let messages = vec![json!({"role": "user", "content": "Hello"})];
        let tools = None;
        let add_generation_prompt = true;
        let further = Map::new();
        let chat = Chat { messages, tools, add_generation_prompt, further };
        Template::of(config).expect("a template").render(&chat).expect("a text")
    }

    #[test]
    fn without_a_template_there_is_a_simple_one() {
        assert_eq!(render(&json!({})), "<|user|>\nHello\n<|assistant|>\n");
    }

    #[test]
    fn the_models_own_template_is_used() {
        let template =
            "{{ bos_token }}{% for m in messages %}[{{ m.content.strip().upper() }}]{% endfor %}";
        let named =
            json!([{"name": "tools", "template": "-"}, {"name": "default", "template": template}]);
        for template in [json!(template), named] {
            let config = json!({"chat_template": template, "bos_token": {"content": "<s>"}});
            assert_eq!(render(&config), "<s>[HELLO]");
        }
    }

    #[test]
    fn a_template_may_refuse() {
        let config = json!({"chat_template": "{{ raise_exception('no user') }}"});
        let template = Template::of(&config).expect("a template");
        let chat = Chat {
            messages: vec![],
            tools: None,
            add_generation_prompt: true,
            further: Map::new(),
        };
        let error = template.render(&chat).expect_err("a refusal");
        assert!(error.to_string().contains("no user"), "{error}");
    }
}
