//! Logs, spans, metrics registry and readiness, independent of the process's task.

mod build_info;
mod logging;
mod process;
mod readiness;
mod registry;
mod rows;

pub use build_info::VERSION;
pub use logging::{LogConfig, LogFormat, Logging, LoggingError, start_logging};
pub use readiness::{NotReady, Readiness};
pub use registry::{CONTENT_TYPE, Metrics, new_registry};
pub use rows::{Row, encode_counter, encode_gauge};
