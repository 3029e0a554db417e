//! Parts that every process of Kvasir shares. They know nothing of what a process does.
//!
//! - [`text`]: values of options, as people write them.
//! - [`config`]: flags, environment and file.
//! - [`options`]: options that every program has.
//! - [`nats`]: connecting to NATS.
//! - [`telemetry`]: logs, spans, metrics registry, readiness.
//! - [`descriptors`]: the limit of open files, and what it is for.
//! - [`net`]: connections with a limit.
//! - [`access`]: who may call, and what they may name.
//! - [`quota`]: how much callers may ask.
//! - [`shares`]: limits of which each tenant or caller may take a part.
//! - [`tls`]: connections of a port, plain or over TLS.
//! - [`port`]: a gRPC port.
//! - [`outlet`]: streams of answers.
//! - [`publish`]: streams of events.
//! - [`http`]: the side port: `/metrics`, `/livez`, `/readyz`.
//! - [`answer_timer`]: timeouts of answers in parts.
//! - [`program`]: a running program, stopped in order.
//! - [`entry`]: from `main` to the runtime and to the exit code.

pub mod text;

pub mod telemetry;

mod environment;

pub mod config;

pub mod nats;

pub mod options;

pub mod descriptors;

pub mod net;

pub mod access;

pub mod quota;

pub mod shares;

pub mod tls;

pub mod port;

pub mod outlet;

pub mod publish;

pub mod http;

pub mod answer_timer;

pub mod program;

pub mod entry;
