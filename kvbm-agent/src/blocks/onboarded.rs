//! The call Onboard: loads blocks into the engines' memory.

use super::shared::BlockManagerService;
use kvasir_proto::types::SequenceHash;
use kvasir_tiers::manager::{OnboardRequest, Onboarded, Session, SessionError};
use tokio::time::Instant;

impl BlockManagerService {
    /// Loads blocks into the engines' memory. Blocks that no tier has are looked up in the volume first: the index
    /// reports the volume's blocks for this worker, whichever agent stored them. No block is held until then, so a
    /// cancelled call holds none.
    pub(super) async fn bring(
        &self,
        session: &Session,
        sequences: &[SequenceHash],
        request: OnboardRequest,
    ) -> Result<Onboarded, SessionError> {
        let began = Instant::now();
        if let Some(volume) = &self.volume {
            volume.register(sequences, request.timeout, (&self.tasks, &self.stop)).await;
        }
        let timeout = request.timeout.saturating_sub(began.elapsed());
        session.onboard(sequences, OnboardRequest { timeout, ..request }).await
    }
}
