//! How processes that keep something on disk use RocksDB: one set of [`options`], and one reading of what it
//! says when it fails ([`Cause`]).

mod cause;
pub mod options;

pub use cause::Cause;

/// A range of keys: its first, and the first behind it.
pub type Bounds = (Vec<u8>, Vec<u8>);
