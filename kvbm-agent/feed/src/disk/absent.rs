//! Stub of `store` for a build without the feature `disk`: no journal on disk, no RocksDB.

use super::{DiskChange, DiskConfig, DiskError, DiskFigures, DiskStatus, Opened, Verdict};
use crate::journal::{Batch, DumpStep, Journal, JournalConfig};
use kvasir_proto::types::Incarnation;
use std::future::Pending;
use std::sync::Arc;

/// Journal on disk. Cannot exist in this build.
#[derive(Debug)]
pub enum Disk {}

/// Image of a journal on disk. Cannot exist in this build.
#[derive(Debug)]
pub enum CompleteImage {}

/// Refuses to open a folder.
///
/// # Errors
/// Always: [`DiskError::Absent`].
pub fn open(
    config: &DiskConfig,
    _journal: JournalConfig,
    _fresh: (Incarnation, u64),
) -> Result<Opened, DiskError> {
    Err(absent(config))
}

/// Refuses to leave a folder.
///
/// # Errors
/// Always: [`DiskError::Absent`].
pub fn leave(config: &DiskConfig) -> Result<(), DiskError> {
    Err(absent(config))
}

fn absent(config: &DiskConfig) -> DiskError {
    DiskError::Absent { folder: config.folder.clone() }
}

/// Methods of `Disk` as in `store`; never called.
#[expect(missing_docs, clippy::missing_errors_doc, reason = "`store` documents them")]
impl Disk {
    #[must_use]
    pub fn status(&self) -> DiskStatus {
        match *self {}
    }

    #[must_use]
    pub const fn figures(&self) -> &DiskFigures {
        match *self {}
    }

    #[must_use]
    pub fn is_given_up(&self) -> bool {
        match *self {}
    }

    pub fn write<'a>(&self, _batches: &[Arc<Batch>], _change: impl Into<DiskChange<'a>>) {
        match *self {}
    }

    pub fn republish(&self, _incarnation: Incarnation, _first: u64, _batches: &[Arc<Batch>]) {
        match *self {}
    }

    pub fn begin_incarnation(&self, _incarnation: Incarnation, _first: u64) {
        match *self {}
    }

    pub fn decide(&self, _verdict: Verdict) {
        match *self {}
    }

    pub(crate) fn revokes_incarnation(&self) -> bool {
        match *self {}
    }

    pub fn image_is_due(&self) -> Pending<()> {
        match *self {}
    }

    pub fn write_image<E: From<DiskError>>(
        &self,
        _step: impl FnMut() -> Result<DumpStep, E>,
    ) -> Result<CompleteImage, E> {
        match *self {}
    }

    pub fn count(&self, _complete: &CompleteImage, _journal: &Journal) {
        match *self {}
    }

    pub fn image_failed(&self, _error: &DiskError) {
        match *self {}
    }
}
