//! A mock engine in real time: the [machine](crate::engine::timed) that [`crate::sweep`] runs in virtual time, driven by
//! the clock, with the publisher that [`MockEngine`](crate::engine::MockEngine) has.
//!
//! There are two schedulers over one [pool](crate::engine::pool): that of [`MockEngine`](crate::engine::MockEngine), whose
//! steps take no time, and the machine. Both follow the same rules of admission, and both are exact: what they publish
//! is what happened to their pool, in that order. This engine takes its steps, its times and its events from the machine
//! alone. It has no sliding window: the machine has one group of blocks.
//!
//! - [`config`]: sizes and times;
//! - [`changes`]: changes of the cache as events of vLLM (pure);
//! - [`metrics`]: metrics under vLLM's names;
//! - [`request`]: what a request asks, and how far it is (pure);
//! - `actor`: the task that owns machine and sockets;
//! - [`ticket`]: a request as its caller sees it;
//! - [`engine`]: the handle.

pub(crate) mod actor;
pub mod changes;
pub mod config;
pub mod engine;
pub mod metrics;
pub mod request;
pub mod ticket;

pub use config::LiveConfig;
pub use engine::{LiveEngine, LiveError, Refusal};
pub use request::{Progress, Submission};
pub use ticket::Ticket;
