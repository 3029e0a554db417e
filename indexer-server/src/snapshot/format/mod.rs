//! Keys and values of the database, by version. Nothing that is read is believed: lengths, numbers
//! and names are checked, and what is left over is refused.
//!
//! Everything of one rank lies together, in the order of its slots, so that a worker is read in one
//! sweep and a change touches few places. Blocks are in pages, as the index has them; per block
//! there are only its name and its local hash (16 bytes), and per page about 20 bytes more.
//! Small values are protobuf messages, so that fields can be added.

mod contents;
mod keys;
mod reader;
mod reasons;
mod records;
mod registered_by;

#[cfg(test)]
mod format_test;

pub(super) use contents::{
    decode_hole, decode_meaning, decode_name, decode_page, encode_hole, encode_meaning,
    encode_name, encode_page,
};
pub(super) use keys::{
    Content, ContentKey, KeyKind, contents_bounds, export_bounds, generation_bounds, generation_of,
    import_key, manifest_key, position_key, registration_key, registration_of, worker_bounds,
    worker_key, worker_of, workers_bounds, write_bounds, write_key, write_of,
};
pub(super) use records::{ManifestRecord, PositionRecord, WorkerHead, WorkerRecord};

pub use reader::FormatError;
pub use records::{StoredWorker, StreamPosition, WorkerState};

/// Version of the format that is read and written. Later ones are refused.
pub const FORMAT_VERSION: u32 = 1;
