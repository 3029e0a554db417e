//! The work, made before any clock runs and the same for each index.
//!
//! - [`content`]: blocks, operations on them, and how they are kept small;
//! - [`fleet`]: who stores which chains, and in what order;
//! - [`removal`]: the orders in which everything goes again;
//! - [`trace`]: a recorded trace through mock engines;
//! - [`query`]: prompts to ask for, with the answers they must get.

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
