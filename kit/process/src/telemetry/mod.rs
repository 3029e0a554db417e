//! Logs, spans, metrics registry and readiness, independent of the process's task.

mod build_info;
mod exemplars;
mod export;
mod logging;
mod process;
mod readiness;
mod registry;
mod rows;
mod trace;
mod traced;

pub use build_info::{COMMIT, VERSION, VERSION_TEXT};
pub use exemplars::TimeHistogram;
pub use logging::{LogConfig, LogFormat, Logging, LoggingError, start_logging};
pub use readiness::{NotReady, Readiness};
pub use registry::{CONTENT_TYPE, Metrics, new_registry};
pub use rows::{Row, encode_counter, encode_gauge};
pub use trace::{record_status, request_span, root_span};
pub use traced::{TraceCalls, TracedBody};
