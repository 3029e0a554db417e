use super::AgentError;
use kvasir_feed::disk::{DiskConfig, DiskError, Opened, PersistedSources, leave, open};
use kvasir_feed::feed::{Feed, SourceConfig};
use std::collections::BTreeMap;
use std::path::PathBuf;
use tokio::task::spawn_blocking;

/// Continues in memory after a disk failure, once it is certain that the next start will not resume from the folder.
fn without(config: &DiskConfig, error: DiskError) -> Result<Option<Opened>, DiskError> {
    if error.is_misconfigured() {
        return Err(error);
    }
    leave(config)?;
    tracing::error!(%error, "the journal is not on disk");
    Ok(None)
}

/// Opens the agent's stream and its persisted sources. Without a folder, the stream is only in memory. If the disk
/// fails, the agent starts without the folder. If the folder belongs to another agent, the start fails.
pub(super) async fn open_feed(
    source: SourceConfig,
    folder: Option<PathBuf>,
    lora_names: BTreeMap<u64, String>,
    is_consolidated: bool,
) -> Result<(Feed, PersistedSources), AgentError> {
    let Some(folder) = folder else { return Ok(Feed::open(source, None)?) };
    let address = source.address.clone();
    let block_size = source.block_size;
    let config = DiskConfig { folder, address, block_size, lora_names, is_consolidated };
    let journal = source.journal;
    let fresh = (source.incarnation, source.first_sequence);
    // A panic is in the log.
    let opened = spawn_blocking(move || {
        open(&config, journal, fresh).map(Some).or_else(|error| without(&config, error))
    });
    let opened = opened.await.map_err(|_panic| AgentError::DiskPanic)??;
    Ok(Feed::open(source, opened)?)
}

#[cfg(test)]
#[cfg(feature = "disk")]
mod tests {
    use super::*;
    use kvasir_feed::disk::NewIncarnation;
    use kvasir_feed::journal::JournalConfig;
    use kvasir_proto::convert::WorkerAddress;
    use kvasir_proto::types::{Incarnation, PartitionKey, WorkerId};
    use std::fs;

    /// The incarnation continues in memory, so that the journal on disk is outdated.
    #[tokio::test]
    async fn a_start_without_its_disk_ends_what_is_on_it() {
        let partition = PartitionKey::new("m", "").expect("a name");
        let address = WorkerAddress { partition, worker: WorkerId::new("w").expect("a name") };
        let source = |incarnation| SourceConfig {
            address: address.clone(),
            name: "agent".to_owned(),
            block_size: 4,
            incarnation: Incarnation(incarnation),
            first_sequence: 0,
            journal: JournalConfig::DEFAULT,
        };
        let folder = tempfile::tempdir().expect("a folder");
        let start = async |incarnation| {
            open_feed(source(incarnation), Some(folder.path().to_owned()), BTreeMap::new(), false)
                .await
        };
        let (feed, _) = start(1).await.expect("a folder of its own");
        assert!(feed.disk().is_some());
        drop(feed);
        // Without its manifest, the database cannot be opened.
        let files = fs::read_dir(folder.path().join("db")).expect("a database");
        let mut files = files.map(|file| file.expect("a file").path());
        let is_manifest = |file: &PathBuf| file.to_string_lossy().contains("MANIFEST");
        let manifest = files.find(is_manifest).expect("its manifest");
        let aside = folder.path().join("db/aside");
        fs::rename(&manifest, &aside).expect("it is there");
        fs::create_dir(&manifest).expect("room");
        let (feed, _) = start(2).await.expect("without the disk");
        assert!(feed.disk().is_none(), "in memory only");
        drop(feed);
        fs::remove_dir(&manifest).expect("it is there");
        fs::rename(&aside, &manifest).expect("it is there");
        let folder = folder.path().to_owned();
        let lora_names = BTreeMap::new();
        let config =
            DiskConfig { folder, address, block_size: 4, lora_names, is_consolidated: false };
        let opened = open(&config, JournalConfig::DEFAULT, (Incarnation(3), 0)).expect("it works");
        assert!(matches!(opened.restored, Err(NewIncarnation::Unmarked)), "{:?}", opened.restored);
    }
}
