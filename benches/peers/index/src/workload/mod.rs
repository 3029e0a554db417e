//! Generates the workloads, before any clock runs and equally for each index.
//!
//! - [`content`]: blocks, operations on them, and their compact form;
//! - [`fleet`]: the chains of each worker, and the order of storing;
//! - [`removal`]: the orders in which all blocks are removed;
//! - [`trace`]: a recorded trace, played through mock engines;
//! - [`query`]: queries with their expected answers.

mod content;
mod fleet;
mod query;
mod removal;
mod trace;

pub(crate) use content::{Action, Content, Operation, Script, Span};
pub(crate) use fleet::{Fleet, Kind, Piece};
pub(crate) use query::{Case, Expected, QUERY_BLOCKS_MAX, Question, cases};
pub(crate) use removal::{Order, removals};
pub(crate) use trace::Trace;
