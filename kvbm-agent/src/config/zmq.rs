use crate::zmq::{TOPIC_BYTES_MAX, ZMQ_TOPIC_DEFAULT, ZmqConfig};
use kvasir_process::config::ConfigError;
use kvasir_process::text::{Setting, Settings, Unset};
use std::net::SocketAddr;

/// Sockets that publish events like an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZmqSettings {
    /// Address of the PUB socket.
    pub listen: Unset<SocketAddr>,
    /// Address of the ROUTER socket, which replays missed events.
    pub replay_listen: Unset<SocketAddr>,
    /// Topic of the events.
    pub topic: String,
}

impl Default for ZmqSettings {
    fn default() -> Self {
        let topic = ZMQ_TOPIC_DEFAULT.to_owned();
        Self { listen: Unset(None), replay_listen: Unset(None), topic }
    }
}

impl Settings for ZmqSettings {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![
            ("listen", &mut self.listen),
            ("replay-listen", &mut self.replay_listen),
            ("topic", &mut self.topic),
        ]
    }
}

impl ZmqSettings {
    /// Checks the settings. Returns `None` without sockets.
    ///
    /// # Errors
    /// If a setting is missing or cannot be used. The error names it.
    pub(super) fn check(&self) -> Result<Option<ZmqConfig>, ConfigError> {
        let (listen, replay) = match (self.listen.0, self.replay_listen.0) {
            (None, None) => return Ok(None),
            (Some(listen), Some(replay)) => (listen, replay),
            (Some(_), None) => {
                let why =
                    "is required with listen: subscribers request missed messages from its socket";
                return Err(ConfigError::invalid("zmq replay-listen", why));
            }
            (None, Some(_)) => {
                let why = "is required with replay-listen: set both keys, or remove replay-listen";
                return Err(ConfigError::invalid("zmq listen", why));
            }
        };
        let topic = self.topic.clone();
        let bytes = topic.len();
        let limit = TOPIC_BYTES_MAX;
        if bytes > limit {
            let why = format!("has {bytes} bytes, the limit is {limit}");
            return Err(ConfigError::invalid("zmq topic", why));
        }
        Ok(Some(ZmqConfig { listen, replay, topic }))
    }
}
