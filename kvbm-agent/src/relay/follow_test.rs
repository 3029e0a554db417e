use super::*;
use kvasir_feed::feed::{Feed, SourceConfig};
use kvasir_feed::hub::HubConfig;
use kvasir_feed::journal::JournalConfig;
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::types::{
    BlockName, CopyMode, Cursor, Incarnation, LocalHash, PartitionKey, SourceState, StoredBlock,
    Tier, WorkerId,
};

fn feed(worker: &str) -> Arc<Feed> {
    let partition = PartitionKey::new("m", "").expect("a name");
    let worker = WorkerId::new(worker).expect("a name");
    let config = SourceConfig {
        address: WorkerAddress { partition, worker },
        name: "agent".to_owned(),
        block_size: 2,
        incarnation: Incarnation(1),
        first_sequence: 0,
        journal: JournalConfig { copy_mode: CopyMode::Set, ..JournalConfig::DEFAULT },
    };
    Arc::new(Feed::new(config).expect("a source"))
}

fn sink() -> (HubSink, EnginePool, Arc<Hub>) {
    let worker = feed("w");
    let hub = Hub::new(Arc::clone(&worker), HubConfig::default()).expect("a hub");
    let hub = Arc::new(hub);
    let inlet = hub.open("engine", CopyMode::Set).expect("a source");
    let pool = EnginePool { feed: feed("pool"), worker };
    (HubSink { inlet, pool: Some(pool.clone()), fresh: true, noted: Vec::new() }, pool, hub)
}

fn names(names: &[u64]) -> Vec<BlockName> {
    names.iter().copied().map(BlockName).collect()
}

fn stored(parent: Option<u64>, names: &[u64], tier: Tier) -> KvEvent {
    let block = |&name| StoredBlock { name: BlockName(name), local: LocalHash(100 + name) };
    let blocks = names.iter().map(block).collect();
    KvEvent::Stored { parent: parent.map(BlockName), tier, blocks }
}

fn apply(sink: &mut HubSink, events: Vec<KvEvent>, pool_events: Vec<KvEvent>) {
    sink.handle_command(SourceCommand::Apply {
        cursor: Cursor { incarnation: Incarnation(1), sequence: 0, fingerprint: None },
        rank: 3,
        events,
        pool_events,
        drops: Box::default(),
        unmatchable_blocks: 0,
        reasons: Vec::new(),
        names: Vec::new(),
        learned: Arc::default(),
    });
}

/// Blocks in the pool: name, parent, local hash.
fn held(pool: &EnginePool, asked: &[u64]) -> Vec<(u64, Option<u64>, u64)> {
    let held = pool.feed.held(0, &names(asked)).into_iter();
    let held = held.filter(|at| at.copies != [0; Tier::COUNT]);
    let seen = |at: kvasir_proto::types::HeldBlock| {
        (at.name.0, at.parent.map(|parent| parent.0), at.local.expect("published with it").0)
    };
    held.map(seen).collect()
}

/// The state is that of the engines which announce the pool's blocks.
#[test]
fn the_pool_has_the_state_of_the_worker() {
    let (mut sink, pool, hub) = sink();
    for (state, connected) in [(SourceState::Gap, true), (SourceState::CatchingUp, false)] {
        sink.handle_command(SourceCommand::Status(SourceStatus {
            state,
            connected,
            ..Default::default()
        }));
        let of_pool = pool.feed.feed_state();
        let of_worker = hub.feed().feed_state();
        assert_eq!((of_pool.state, of_pool.connected), (state, connected));
        assert_eq!(of_pool, of_worker);
    }
}

#[test]
fn blocks_of_the_store_outlive_the_engine_and_end_with_a_loss() {
    let (mut sink, pool, _hub) = sink();
    let of_pool = stored(None, &[1, 2], Tier::OF_POOL);
    apply(&mut sink, vec![stored(None, &[1], Tier::Device)], vec![of_pool.clone()]);
    let both = [(1, None, 101), (2, Some(1), 102)];
    assert_eq!(held(&pool, &[1, 2]), both);
    for over in [SourceCommand::Clear, SourceCommand::Expired] {
        sink.handle_command(over);
        assert_eq!(held(&pool, &[1, 2]), both);
    }
    let gone = KvEvent::Gone { tier: Tier::OF_POOL, names: names(&[1]) };
    sink.handle_command(SourceCommand::ExpireInPool(Expired { rank: 0, event: gone, early: 0 }));
    assert_eq!(held(&pool, &[1, 2]), both[1..]);
    sink.handle_command(SourceCommand::ClearLost);
    assert_eq!(held(&pool, &[1, 2]), []);
    apply(&mut sink, Vec::new(), vec![of_pool]);
    assert_eq!(held(&pool, &[1, 2]), both, "announced again");
}

/// Connectors announce blocks by name only, after the engine has announced them with tokens.
#[test]
fn a_name_means_what_the_worker_or_the_pool_has_under_it() {
    let (mut sink, pool, hub) = sink();
    apply(&mut sink, vec![stored(None, &[1, 2, 3], Tier::Device)], Vec::new());
    let by_name = |asked: &[u64]| KvEvent::StoredNames { tier: Tier::OF_POOL, names: names(asked) };
    apply(&mut sink, Vec::new(), vec![by_name(&[2, 3, 9])]);
    assert_eq!(held(&pool, &[1, 2, 3, 9]), [(2, Some(1), 102), (3, Some(2), 103)]);
    // Announced in the batch with their eviction, and after it.
    let evicted = KvEvent::Removed { tier: Tier::Device, names: names(&[1, 2, 3]) };
    apply(&mut sink, vec![evicted], vec![by_name(&[1, 2])]);
    assert_eq!(held(&pool, &[1, 2, 3]), [(1, None, 101), (2, Some(1), 102), (3, Some(2), 103)]);
    apply(&mut sink, Vec::new(), vec![by_name(&[2, 7])]);
    let counts = hub.reports().remove(0).counts;
    assert_eq!((counts.pool_operations, counts.pool_unknown), (5, 2));
    // Stored and announced by name in one batch.
    apply(&mut sink, vec![stored(Some(3), &[7, 8], Tier::Device)], vec![by_name(&[8, 7])]);
    assert_eq!(held(&pool, &[7, 8]), [(7, Some(3), 107), (8, Some(7), 108)]);
}

#[test]
fn reasons_are_flaws_of_the_batch() {
    let flaws = |reason| flaws_of(&[(reason, 1, String::new())], &Drops::default());
    let lost = Flaws { has_lost: true, lacks_blocks: false };
    let lacks = Flaws { has_lost: false, lacks_blocks: true };
    assert_eq!(flaws(Reason::Contradiction), lost);
    assert_eq!(flaws(Reason::UnknownMedium), lacks);
    assert_eq!(flaws_of(&[], &Drops::default()), Flaws::default());
}
