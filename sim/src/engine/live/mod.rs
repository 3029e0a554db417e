//! A mock engine in real time: the [machine](crate::engine::timed) that [`crate::sweep`] runs in virtual time, driven
//! by the clock, with the publisher of [`MockEngine`](crate::engine::MockEngine).
//!
//! There are two schedulers over one [pool](crate::engine::pool): that of [`MockEngine`](crate::engine::MockEngine),
//! whose steps take no time, and the machine. Both follow the same admission rules. Both are exact: they publish
//! exactly the changes of their pool, in order. This engine takes its steps, times and events only from the machine. It
//! has no sliding window, because the machine has one group of blocks.
//!
//! - [`config`]: sizes and times;
//! - [`changes`]: converts changes of the cache to events of vLLM (pure);
//! - [`metrics`]: metrics under vLLM's names;
//! - [`request`]: a request and its progress (pure);
//! - `actor`: the task that owns machine and sockets;
//! - [`ticket`]: the caller's view of a request;
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
