//! Chunk sizes of connectors in a registration.

use super::shared::{check_count, check_range, check_required_name};
use super::{ConvertError, Problem};
use crate::limits::{
    CONNECTOR_CHUNK_BLOCKS_MAX, CONNECTOR_CHUNK_BLOCKS_MIN, WORKER_CONNECTOR_CHUNKS_MAX,
};
use std::collections::BTreeMap;
use std::fmt;

/// Checks the chunk sizes by medium, in blocks. Returns them by the medium's name in upper case.
///
/// # Errors
/// If there are too many entries, an entry is out of range, or a medium occurs twice. The error names the entry.
pub fn read_connector_chunks(
    chunks: Vec<(String, u32)>,
) -> Result<BTreeMap<String, u32>, ConvertError> {
    check_count("connector_chunks", chunks.len(), WORKER_CONNECTOR_CHUNKS_MAX)?;
    let mut read = BTreeMap::new();
    for (index, (medium, blocks)) in chunks.into_iter().enumerate() {
        let min = CONNECTOR_CHUNK_BLOCKS_MIN.into();
        let max = CONNECTOR_CHUNK_BLOCKS_MAX.into();
        let checked = check_required_name("medium", &medium)
            .and_then(|()| check_range("blocks", blocks.into(), min, max))
            .and_then(|()| match read.insert(medium.to_ascii_uppercase(), blocks) {
                None => Ok(()),
                Some(_) => Err(ConvertError::new("medium", Problem::Repeated(medium))),
            });
        checked.map_err(|error| error.within(format!("connector_chunks[{index}]")))?;
    }
    Ok(read)
}

/// Displays chunk sizes.
pub(super) struct Chunks<'a>(pub(super) &'a BTreeMap<String, u32>);

impl fmt::Display for Chunks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        self.0.iter().enumerate().try_for_each(|(index, (medium, blocks))| {
            write!(f, "{}{medium}={blocks}", if index == 0 { "" } else { "," })
        })
    }
}
