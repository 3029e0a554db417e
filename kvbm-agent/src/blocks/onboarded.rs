//! The call Onboard: loads blocks into the engines' memory.

use super::shared::BlockManagerService;
use kvasir_proto::types::SequenceHash;
use kvasir_tiers::manager::{OnboardRequest, Onboarded, Session, SessionError};
use tokio::time::Instant;

impl BlockManagerService {
    /// Loads the blocks of `sequences` into the engines' memory. With a volume, first registers the volume's blocks
    /// that no tier has: the index reports them for this worker, whichever agent stored them. During that lookup no
    /// block is held, so a cancelled call holds none.
    pub(super) async fn bring(
        &self,
        session: &Session,
        sequences: &[SequenceHash],
        request: OnboardRequest,
    ) -> Result<Onboarded, SessionError> {
        let began = Instant::now();
        if let Some(volume) = &self.volume {
            volume.register(sequences, request.timeout, &self.tasks, &self.stop).await;
        }
        let timeout = request.timeout.saturating_sub(began.elapsed());
        session.onboard(sequences, OnboardRequest { timeout, ..request }).await
    }
}
