//! Compares answers with what engines report.

use crate::index::Index;
use crate::source::HolderId;
use kvasir_proto::types::{DpRank, PromptReuse, WorkerId};

impl Index {
    /// Compares the predicted reuse of prompts at a rank with the actual reuse. While many of the last requests differ,
    /// the rank is not exact. Ignores requests while the rank is not exact for another reason.
    pub fn compare_reuse(
        &mut self,
        worker: &WorkerId,
        rank: DpRank,
        requests: &[PromptReuse],
        block_size: u32,
    ) {
        let ranks = self.workers.get(worker).into_iter().flat_map(|worker| &worker.ranks);
        let Some(at) = ranks.filter(|(at, _)| *at == rank).map(|&(_, at)| at).next() else {
            return;
        };
        if !self.holder(HolderId(at)).is_some_and(|holder| holder.is_predictable()) {
            return;
        }
        let Some(Some(holder)) = self.holders.get_mut(at as usize) else { return };
        for &reused in requests {
            holder.reuse_history_mut().add(reused, block_size);
        }
        self.recount(at);
    }
}
