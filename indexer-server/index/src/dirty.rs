//! Records a rank's changes during its dumps.

use kvasir_proto::types::BlockName;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

/// Names changed since a dump began.
#[derive(Debug)]
struct DirtyNames {
    dump: u64,
    names: FxHashSet<BlockName>,
    names_max: usize,
    aborted: Option<&'static str>,
}

impl DirtyNames {
    /// Adds a changed name. Aborts the dump beyond the limit.
    fn note_changed(&mut self, name: BlockName) {
        if self.aborted.is_some() {
            return;
        }
        self.names.insert(name);
        if self.names.len() > self.names_max {
            self.abort("too many names changed during the dump");
        }
    }

    fn abort(&mut self, reason: &'static str) {
        self.aborted.get_or_insert(reason);
        self.names = FxHashSet::default();
    }
}

/// The running dumps of a rank.
#[derive(Debug, Default)]
pub(crate) struct Dumps(SmallVec<[DirtyNames; 1]>);

impl Dumps {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records the start of a dump. It aborts once more than `names_max` names have changed.
    pub(crate) fn begin_dump(&mut self, dump: u64, names_max: usize) {
        debug_assert!(self.0.iter().all(|at| at.dump != dump), "dumps have numbers of their own");
        let names = FxHashSet::default();
        self.0.push(DirtyNames { dump, names, names_max, aborted: None });
    }

    /// Records the end of a dump.
    pub(crate) fn end_dump(&mut self, dump: u64) {
        self.0.retain(|at| at.dump != dump);
    }

    /// Records a changed name in all dumps.
    pub(crate) fn note_changed(&mut self, name: BlockName) {
        self.0.iter_mut().for_each(|dump| dump.note_changed(name));
    }

    /// Aborts all dumps.
    pub(crate) fn abort(&mut self, reason: &'static str) {
        self.0.iter_mut().for_each(|dump| dump.abort(reason));
    }

    /// Names changed since a dump began, or the reason why it was aborted.
    pub(crate) fn names(&self, dump: u64) -> Result<&FxHashSet<BlockName>, &'static str> {
        let dump = self.0.iter().find(|at| at.dump == dump).ok_or("the worker was removed")?;
        dump.aborted.map_or(Ok(&dump.names), Err)
    }
}
