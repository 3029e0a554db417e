//! Frames and messages. The format is in the crate's README.
//!
//! - `error`: what is wrong with bytes. `rank`: which part of a block an agent has. `description`: what blocks are, and whether
//!   two agents mean the same.
//! - `kind`: what a frame is. `header`: how long a frame is. `messages`: what it says.
//! - `frames`: reading and writing them.

mod description;
mod error;
mod frames;
mod header;
mod kind;
mod messages;
mod rank;

pub use description::{BlockDescription, Differs};
pub use error::WireError;
pub use frames::{FrameReader, write_all};
pub use header::{HEADER_BYTES, Header};
pub use kind::Kind;
pub use messages::{
    BlockHead, End, Fault, Fetch, Hello, Lent, LentBlock, Message, Refusal, RefusalCode, Return,
    Welcome,
};
pub use rank::{RankBlock, Shard, form_number};

#[cfg(test)]
mod wire_test;
