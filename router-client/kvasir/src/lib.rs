//! All programs of Kvasir in one binary, and `kvasir serve`: an OpenAI endpoint in front of inference engines, with
//! index, router and gateway in one process.
//!
//! - [`config`]: options of `serve` and `check`;
//! - [`check`]: proves that events, tokens and block size of an engine are right; its [`report`];
//! - `parts`, `watch`: what `serve` and `check` share, and the parts that show their state;
//! - [`serve`], [`once`]: the commands.

pub mod check;
pub mod config;
pub mod once;
mod parts;
pub mod report;
pub mod serve;
mod watch;
