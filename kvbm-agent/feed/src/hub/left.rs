use crate::consolidate::{SOURCES_MAX, SourceNumber};
use crate::disk::PersistedSource;
use kvasir_proto::convert::KnownName;
use std::collections::BTreeMap;

/// Positions and holdings on disk of sources that are not open yet.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Positions by source name.
    pub(super) positions: BTreeMap<String, PersistedSource>,
    /// Meanings of the sources' names, by source name.
    pub(super) names: BTreeMap<String, Vec<KnownName>>,
    /// Numbers of consolidated sources' holdings, above the numbers of open sources.
    pub(super) places: BTreeMap<String, SourceNumber>,
}

impl Left {
    /// The number of a source's holdings, assigned at the first call. `None` if there are too many sources.
    pub(super) fn place(&mut self, source: &str) -> Option<SourceNumber> {
        if let Some(number) = self.places.get(source) {
            return Some(*number);
        }
        let number = u8::try_from(self.places.len()).ok()?.checked_add(SOURCES_MAX)?;
        self.places.insert(source.to_owned(), SourceNumber(number));
        Some(SourceNumber(number))
    }
}
