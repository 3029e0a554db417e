//! `KvEventPublisher` for engines in C and C++: what an engine stores and evicts is journalled here, in
//! its process, and goes to the agent beside it, or to an index. `include/kvasir.h` is made of [`abi`]
//! and [`types`].
//!
//! - [`abi`]: the functions, which check what they are handed and catch what panics.
//! - [`types`]: what crosses the boundary: structures, codes, constants.
//! - `read`: arguments behind pointers.
//! - `handles`: which publishers are open. What a caller holds is a number in the shape of a pointer, so
//!   that a handle that is no more, or never was, is found out and never followed.
//! - `publisher`: one publisher, in safe Rust: a feed, an uplink that keeps up with it, a thread for both.
//! - `fault`: why a call failed, and the text of it.

#[expect(unsafe_code, reason = "a C interface has exported names, and is handed pointers")]
pub mod abi;

mod fault;

mod handles;

mod publisher;

#[expect(unsafe_code, reason = "what the caller points to is read and written here only")]
mod read;

pub mod types;
