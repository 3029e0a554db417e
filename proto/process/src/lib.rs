//! What every process of Kvasir is made of. Knows nothing of what they do.
//!
//! - [`causes`]: an error with all that caused it, in one line.
//! - [`text`]: values of options, as people write them.
//! - [`config`]: flags, environment and file.
//! - [`telemetry`]: logs, spans, metrics registry, readiness.
//! - [`descriptors`]: the limit of open files, and what it is for.
//! - [`net`]: connections with a limit.
//! - [`port`]: a gRPC port.
//! - [`http`]: the side port: `/metrics`, `/livez`, `/readyz`.
//! - [`answer_timer`]: answers in parts, for as long as they make progress.
//! - [`tasks`]: tasks by name, each joined.
//! - [`entry`]: from `main` to the runtime and to the exit code.

pub mod causes;

pub mod text;

pub mod telemetry;

mod environment;

pub mod config;

pub mod descriptors;

pub mod net;

pub mod port;

pub mod http;

pub mod answer_timer;

pub mod tasks;

pub mod entry;
