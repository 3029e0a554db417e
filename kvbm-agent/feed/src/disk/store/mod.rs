//! Journal on disk with RocksDB. Functions over `Target` and `Origin` write and restore it, and are tested without
//! RocksDB. `database` is the shell.

mod cause;
mod database;
mod folder;
mod format;
mod image;
mod open;
mod records;
mod restore;

pub use database::Disk;
pub use image::CompleteImage;
pub use open::{leave, open};

#[cfg(test)]
mod restore_test;
#[cfg(test)]
mod store_test;
