//! Binary format of checkpoints: keys and values in RocksDB. Decoding validates everything: lengths, numbers, names and trailing
//! bytes.
//!
//! All keys of one rank are adjacent, in the order of its slots. A worker is read in one scan, and a change touches few
//! keys. Blocks are stored in pages, as in the index. Each block costs 16 bytes (its name and its local hash), each
//! page about 20 bytes more. Small values are protobuf messages, so that fields can be added.

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

/// Version of the format that this server reads and writes. Later versions are refused.
pub const FORMAT_VERSION: u32 = 1;
