use super::*;
use kvasir_feed::feed::write_images;
use kvasir_proto::types::{
    BlockName, Incarnation, KvEvent, LocalHash, PartitionKey, StoredBlock, Tier,
};
use kvasir_tasks::tasks::Tasks;
use tempfile::TempDir;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// Far longer than any step of these tests.
const PATIENCE: Duration = Duration::from_secs(30);

fn id(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a name")
}

fn agent() -> SourceConfig {
    let partition = PartitionKey::new("m", "").expect("a name");
    SourceConfig {
        address: WorkerAddress { partition, worker: id("w") },
        name: "agent".to_owned(),
        block_size: 4,
        incarnation: Incarnation(1),
        first_sequence: 0,
        // Small limits, so that images are due often.
        journal: JournalConfig { batches_max: 2, bytes_max: 512, ..JournalConfig::DEFAULT },
    }
}

/// Opens the engines' pool of an agent whose numbered adapter 1 has the name `lora`.
async fn open(folder: &TempDir, pool: Option<&str>, lora: &str) -> Option<Arc<Feed>> {
    let lora_names = BTreeMap::from([(1, lora.to_owned())]);
    let pools = Pools::open(None, pool.map(id), &agent(), Some(folder.path()), lora_names).await;
    pools.expect("a folder of its own").engine
}

async fn with_pool(folder: &TempDir) -> Arc<Feed> {
    open(folder, Some("store"), "a").await.expect("a pool")
}

fn store(feed: &Feed, names: &[u64]) {
    for &name in names {
        let blocks = vec![StoredBlock { name: BlockName(name), local: LocalHash(name) }];
        let event = KvEvent::Stored { parent: None, tier: Tier::OF_POOL, blocks };
        feed.publish(0, vec![event]).expect("a batch");
    }
}

fn held(feed: &Feed) -> Vec<u64> {
    let names: Vec<_> = (0..20).map(BlockName).collect();
    let held = feed.held(0, &names).into_iter();
    held.filter(|at| at.copies != [0; Tier::COUNT]).map(|at| at.name.0).collect()
}

/// An index that lacks evicted batches receives all blocks in a new incarnation. The new incarnation is on disk, too.
#[tokio::test]
async fn a_store_is_known_after_any_restart() {
    let folder = TempDir::new().expect("a folder");
    let mut seen = Vec::new();
    for round in 0..4 {
        let feed = with_pool(&folder).await;
        let disk = feed.disk().expect("a journal on disk");
        assert!(feed.is_settled());
        let stop = CancellationToken::new();
        let mut images = Tasks::default();
        images.spawn("images", write_images(Arc::clone(&feed), stop.clone()));
        assert_eq!(held(&feed), (0..4 * round).collect::<Vec<_>>());
        let status = feed.status();
        assert!(!seen.contains(&status.incarnation), "a new incarnation");
        seen.push(status.incarnation);
        store(&feed, &[4 * round, 4 * round + 1, 4 * round + 2]);
        if round % 2 == 1 {
            feed.republish(feed.status().incarnation, new_incarnation());
            seen.push(feed.status().incarnation);
        }
        store(&feed, &[4 * round + 3]);
        let made = async {
            while disk.status().images == 0 {
                yield_now().await;
            }
        };
        timeout(PATIENCE, made).await.expect("an image");
        stop.cancel();
        assert!(images.end(Instant::now() + PATIENCE).await && !disk.is_given_up());
    }
}

#[tokio::test]
async fn what_was_not_followed_or_is_called_otherwise_does_not_count() {
    let folder = TempDir::new().expect("a folder");
    let begin = async || {
        let feed = with_pool(&folder).await;
        store(&feed, &[1, 2]);
        assert_eq!(held(&feed), [1, 2]);
    };
    begin().await;
    // Blocks that were hashed with another adapter's name are dropped.
    let renamed = open(&folder, Some("store"), "b").await.expect("a pool");
    assert_eq!(held(&renamed), [0; 0]);
    drop(renamed);
    assert_eq!(held(&*with_pool(&folder).await), [0; 0]);
    begin().await;
    assert!(open(&folder, None, "a").await.is_none());
    assert_eq!(held(&*with_pool(&folder).await), [0; 0]);
}
