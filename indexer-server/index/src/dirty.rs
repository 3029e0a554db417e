//! What changed of a rank while a dump of it is read.

use kvasir_proto::types::BlockName;
use rustc_hash::FxHashSet;

/// Names that changed since a dump began.
#[derive(Debug)]
pub(crate) struct DirtyNames {
    pub(crate) dump: u64,
    pub(crate) names: FxHashSet<BlockName>,
    pub(crate) names_max: usize,
    pub(crate) aborted: Option<&'static str>,
}

impl DirtyNames {
    pub(crate) fn touch(&mut self, name: BlockName) {
        if self.aborted.is_some() {
            return;
        }
        self.names.insert(name);
        if self.names.len() > self.names_max {
            self.abort("too many names changed meanwhile");
        }
    }

    pub(crate) fn abort(&mut self, reason: &'static str) {
        self.aborted.get_or_insert(reason);
        self.names = FxHashSet::default();
    }
}
