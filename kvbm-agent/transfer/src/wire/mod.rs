//! Frames and messages. The format is in the crate's README.
//!
//! - `error`: errors. `rank`: an agent's part of each block. `description`: description of blocks, and their
//!   comparison.
//! - `kind`: kinds of frames. `header`: kind and size of a frame. `messages`: the content of frames.
//! - `frames`: reading and writing frames.

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
