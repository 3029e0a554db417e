//! The call Onboard.

use super::shared::BlockManagerService;
use kvasir_proto::types::SequenceHash;
use kvasir_tiers::manager::{
    OnboardRequest, Onboarded, Session, SessionError, StopReason, Stopped,
};
use tokio::time::{Instant, timeout};

impl BlockManagerService {
    /// Brings blocks into the engines' memory. At the first block that the manager does not know, the volume is asked: the
    /// index credits this worker with all that the volume has, whichever agent stored it.
    pub(super) async fn bring(
        &self,
        session: &Session,
        sequences: &[SequenceHash],
        request: OnboardRequest,
    ) -> Result<Onboarded, SessionError> {
        let began = Instant::now();
        let left = || request.timeout.saturating_sub(began.elapsed());
        let mut all = session.onboard(sequences, request).await?;
        let is_missing = matches!(all.stopped, Some(Stopped { reason: StopReason::Missing, .. }));
        let Some(volume) = self.volume.as_ref().filter(|_| is_missing) else { return Ok(all) };
        let rest = sequences.get(all.blocks.len()..).unwrap_or_default();
        // What was registered before the time is over stays registered.
        let found = timeout(left(), volume.find(&self.manager, rest)).await.unwrap_or(0);
        if found > 0 {
            let request = OnboardRequest { timeout: left(), ..request };
            let more = session.onboard(rest, request).await?;
            all.blocks.extend(more.blocks);
            all.stopped = more.stopped;
        }
        Ok(all)
    }
}
