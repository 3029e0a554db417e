//! Engines as a user states them.

use hyper::Uri;
use kvasir_engine_http::read_address;
use kvasir_proto::limits::BLOCK_SIZE_TOKENS_MAX;
use kvasir_proto::types::EngineFacts;
use std::path::PathBuf;
use std::str::FromStr;

/// Maximum number of engines.
pub const ENGINES_MAX: usize = 1_024;

/// Keys of facts about hybrid models that neither events nor engines state.
pub(crate) const ENGINE_FACTS: [&str; 5] = [
    "attention-chunk-tokens",
    "eagle-drops-block",
    "replay-tokens",
    "prefix-match-unit",
    "unannounced-groups",
];

/// An engine: its URL, and what the user states instead of the engine: `URL[,key=value]...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineSpec {
    /// Address of the engine's OpenAI API.
    pub url: Uri,
    /// ZMQ endpoint of the events of rank 0; `None` for port 5557 of the engine's host. The user may write `*` for the
    /// engine's host.
    pub events: Option<String>,
    /// ZMQ endpoint of the replays of rank 0; `None` for port 5558, or the port after a stated `events`.
    pub replay: Option<String>,
    /// Tokens per block; `None` for the engine's answer.
    pub block_size: Option<u32>,
    /// Model; `None` for the engine's answer.
    pub model: Option<String>,
    /// File with the key of the engine's API.
    pub key_file: Option<PathBuf>,
    /// Facts that the user states; 0 and false for the engine's answer, or unknown.
    pub facts: EngineFacts,
    /// The pod that the engine is; `None` for an address.
    pub pod: Option<Pod>,
}

/// A pod of Kubernetes. Another pod with the same name or address is another engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Name, unique in its namespace at a time.
    pub name: String,
    /// Id, never used again.
    pub uid: String,
}

impl EngineSpec {
    /// Name of the worker: host and port of the URL, with its path if it has one; a pod's name in place of its address.
    #[must_use]
    pub fn name(&self) -> String {
        if let (Some(pod), Some(port)) = (&self.pod, self.url.port_u16()) {
            return format!("{}:{port}", pod.name);
        }
        let authority = self.url.authority().map_or("", |at| at.as_str());
        format!("{authority}{}", self.url.path().trim_end_matches('/'))
    }
}

impl FromStr for EngineSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Only with "=" does an option that needs no value take one.
        if ["true", "false", "on", "off"].contains(&text) {
            return Err(format!("is no engine: write it with its option: --OPTION={text}"));
        }
        let mut parts = text.split(',');
        let url = parts.next().unwrap_or_default().trim();
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        // A password would become part of the worker's name.
        if url.contains('@') {
            return Err("must have no user or password: state a key with key-file=PATH".to_owned());
        }
        // Base URLs of OpenAI's clients end like this.
        let url = url.trim_end_matches('/');
        let url = read_address(url.strip_suffix("/v1").unwrap_or(url))?;
        if url.port_u16().is_none() {
            return Err(format!("{url} has no port: write http://HOST:PORT"));
        }
        let mut spec = Self {
            url,
            events: None,
            replay: None,
            block_size: None,
            model: None,
            key_file: None,
            facts: EngineFacts::default(),
            pod: None,
        };
        for part in parts {
            let (key, value) = part.trim().split_once('=').unwrap_or((part, ""));
            if value.is_empty() {
                return Err(format!("{key:?} must be key=value"));
            }
            if matches!(key, "events" | "replay") && !value.starts_with("tcp://") {
                return Err(format!("{key}={value} must be {key}=tcp://HOST:PORT"));
            }
            match key {
                "events" => spec.events = Some(at_engine(value, &spec.url)),
                "replay" => spec.replay = Some(at_engine(value, &spec.url)),
                "model" => spec.model = Some(value.to_owned()),
                "key-file" => spec.key_file = Some(value.into()),
                "block-size" => {
                    let size = value.parse().ok();
                    let size = size.filter(|size| (1..=BLOCK_SIZE_TOKENS_MAX).contains(size));
                    let why = || format!("block-size={value} must be 1 to {BLOCK_SIZE_TOKENS_MAX}");
                    spec.block_size = Some(size.ok_or_else(why)?);
                }
                _ if ENGINE_FACTS.contains(&key) => state_fact(&mut spec.facts, key, value)?,
                _ => {
                    let facts = ENGINE_FACTS.join(", ");
                    return Err(format!(
                        "there is no {key:?}: use events, replay, block-size, model, key-file or for hybrid models {facts}"
                    ));
                }
            }
        }
        Ok(spec)
    }
}

/// Sets one of the [`ENGINE_FACTS`].
fn state_fact(facts: &mut EngineFacts, key: &str, value: &str) -> Result<(), String> {
    let number = || {
        let number = value.parse().ok().filter(|number| *number > 0);
        number.ok_or_else(|| format!("{key}={value} must be 1 or more tokens"))
    };
    let flag = || value.parse().map_err(|_error| format!("{key}={value} must be true or false"));
    match key {
        "attention-chunk-tokens" => facts.attention_chunk_tokens = number()?,
        "replay-tokens" => facts.replay_tokens = number()?,
        "prefix-match-unit" => facts.prefix_match_unit = number()?,
        "eagle-drops-block" => facts.eagle_drops_block = flag()?,
        _ => facts.unannounced_groups = flag()?,
    }
    Ok(())
}

/// What the user states of each engine of a name: `[,key=value]...`, as after an engine's URL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stated(String);

impl Stated {
    /// Engine at a host and port, with the stated facts and `own` ones, which hold where both differ.
    pub(crate) fn engine(&self, at: &str, own: &str) -> Result<EngineSpec, String> {
        format!("{at}{}{own}", self.0).parse()
    }

    /// Splits `AT[,key=value]...`.
    ///
    /// # Errors
    /// If a fact is invalid; the message names it.
    pub(crate) fn split(text: &str) -> Result<(&str, Self), String> {
        let (at, facts) = text.split_at(text.find(',').unwrap_or(text.len()));
        let stated = Self(facts.to_owned());
        stated.engine("localhost:1", "")?;
        Ok((at, stated))
    }
}

/// Replaces the host `*` of a ZMQ endpoint, as engines write their own sockets, by the engine's host.
fn at_engine(endpoint: &str, engine: &Uri) -> String {
    let host = engine.host().unwrap_or_default();
    let port = endpoint.strip_prefix("tcp://*:");
    port.map_or_else(|| endpoint.to_owned(), |port| format!("tcp://{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_the_engines_host() {
        let spec: EngineSpec = "[::1]:8000,events=tcp://*:5600".parse().expect("an engine");
        assert_eq!(spec.events.as_deref(), Some("tcp://[::1]:5600"));
    }

    #[test]
    fn an_engine_is_a_url_with_what_the_user_states() {
        let spec: EngineSpec = "gpu-0:8000".parse().expect("an engine");
        assert_eq!(
            (spec.url.to_string().as_str(), spec.name().as_str()),
            ("http://gpu-0:8000/", "gpu-0:8000")
        );
        assert_eq!((spec.events, spec.block_size), (None, None));
        for text in ["http://gpu-0:8000/v1", "gpu-0:8000/v1/"] {
            let spec: EngineSpec = text.parse().expect("an engine");
            assert_eq!(spec.name(), "gpu-0:8000", "{text}");
        }
        let text = "http://[::1]:8000/api/,events=tcp://h:1,replay=tcp://h:2,block-size=16,model=m,key-file=/k";
        let spec: EngineSpec = text.parse().expect("an engine");
        assert_eq!(spec.name(), "[::1]:8000/api");
        assert_eq!(
            (spec.events.as_deref(), spec.replay.as_deref()),
            (Some("tcp://h:1"), Some("tcp://h:2"))
        );
        assert_eq!((spec.block_size, spec.model.as_deref()), (Some(16), Some("m")));
        let text = "h:1,attention-chunk-tokens=8192,eagle-drops-block=true,replay-tokens=128,\
                    prefix-match-unit=16,unannounced-groups=true";
        let spec: EngineSpec = text.parse().expect("an engine");
        let expected = EngineFacts {
            attention_chunk_tokens: 8_192,
            eagle_drops_block: true,
            replay_tokens: 128,
            prefix_match_unit: 16,
            unannounced_groups: true,
        };
        assert_eq!(spec.facts, expected);
    }

    #[test]
    fn errors_name_what_is_wrong() {
        for (text, part) in [
            ("http://gpu-0", "has no port"),
            ("ftp://gpu-0:1", "must be http://HOST:PORT"),
            ("", "must be http://HOST:PORT"),
            ("http://user:secret@gpu-0:8000", "must have no user or password"),
            ("gpu-0:8000,evnets=tcp://h:1", "there is no \"evnets\""),
            ("gpu-0:8000,events", "must be key=value"),
            ("gpu-0:8000,events=h:1", "events=h:1 must be events=tcp://HOST:PORT"),
            ("gpu-0:8000,block-size=0", "block-size=0 must be 1 to"),
            ("gpu-0:8000,replay-tokens=0", "replay-tokens=0 must be 1 or more tokens"),
            ("gpu-0:8000,eagle-drops-block=1", "eagle-drops-block=1 must be true or false"),
        ] {
            let error = text.parse::<EngineSpec>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
