use super::AgentError;
use crate::disk::{DiskConfig, KeptSource, open};
use crate::feed::{Feed, SourceConfig};
use std::path::PathBuf;
use tokio::task::spawn_blocking;

/// The agent's stream, with what was kept of its sources: in memory, and in a folder if there is to be one. A disk
/// that fails costs the folder; a folder that is not this agent's, the start.
pub(super) async fn open_feed(
    source: SourceConfig,
    folder: Option<PathBuf>,
) -> Result<(Feed, Vec<KeptSource>), AgentError> {
    let Some(folder) = folder else { return Ok(Feed::open(source, None)?) };
    let (address, block_size) = (source.address.clone(), source.block_size);
    let config = DiskConfig { folder, address, block_size };
    let (journal, fresh) = (source.journal, (source.incarnation, source.first_sequence));
    // A panic is in the log.
    let opened = spawn_blocking(move || open(&config, journal, fresh)).await;
    let opened = match opened.map_err(|_panic| AgentError::DiskPanic)? {
        Ok(opened) => Some(opened),
        Err(error) if error.is_misconfigured() => return Err(error.into()),
        Err(error) => {
            tracing::error!(%error, "the journal is not kept on disk");
            None
        }
    };
    Ok(Feed::open(source, opened)?)
}
