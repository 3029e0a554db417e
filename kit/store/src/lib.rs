//! RocksDB for processes that persist data: one set of [`options`], and one classification of its errors ([`Cause`]).

mod cause;
pub mod options;

pub use cause::Cause;

/// A range of keys: its first key, and the first key after it.
pub type Bounds = (Vec<u8>, Vec<u8>);
