//! Parts that every process of Kvasir shares, independent of the process's task.
//!
//! - [`text`]: option values in text form.
//! - [`config`]: flags, environment and file.
//! - [`options`]: options that all programs share.
//! - [`nats`]: connections to NATS.
//! - [`telemetry`]: logs, spans, metrics registry, readiness.
//! - [`descriptors`]: the limit of open files, and its division.
//! - [`net`]: connections with limits and timeouts.
//! - [`access`]: authentication and permissions of callers.
//! - [`quota`]: rate limits of tenants and identities.
//! - [`shares`]: limits that tenants or callers share, with a maximum share for each.
//! - [`tls`]: accepted connections of a port, plain or over TLS.
//! - [`port`]: a gRPC port with limits, authentication, health and reflection.
//! - [`outlet`]: answer streams that a task sends.
//! - [`publish`]: event streams of publishers.
//! - [`http`]: the side port: `/metrics`, `/livez`, `/readyz`.
//! - [`answer_timer`]: timeouts for streamed answers.
//! - [`program`]: a running program, with an ordered shutdown.
//! - [`entry`]: runs a program from `main` to its exit code.

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
