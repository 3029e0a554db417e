use super::*;
use crate::consolidate::SOURCES_MAX;
use crate::feed::{Feed, SourceConfig};
use crate::journal::JournalConfig;
use kvasir_engine::normalise::{Normaliser, NormaliserConfig};
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::hash::sequence_hashes;
use kvasir_proto::limits::{EVENT_BLOCKS_MAX, WORKER_RANKS_MAX};
use kvasir_proto::types::{
    BlockName, CopyMode, Group, GroupKind, Incarnation, KvEvent, LocalHash, PartitionKey,
    StoredBlock, Tier, WorkerId,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

const INCARNATION: Incarnation = Incarnation(1);

fn hub(sources_max: u8, copy_mode: CopyMode) -> Result<Arc<Hub>, HubError> {
    let consolidate = sources_max > 1;
    hub_of(HubConfig { sources_max, consolidate, ..HubConfig::DEFAULT }, copy_mode)
}

pub(super) fn hub_of(config: HubConfig, copy_mode: CopyMode) -> Result<Arc<Hub>, HubError> {
    let partition = PartitionKey::new("m", "").expect("a name");
    let feed = Feed::new(SourceConfig {
        address: WorkerAddress { partition, worker: WorkerId::new("w").expect("a name") },
        name: "agent".to_owned(),
        block_size: 4,
        incarnation: INCARNATION,
        first_sequence: 0,
        journal: JournalConfig { copy_mode, ..JournalConfig::DEFAULT },
    });
    Hub::new(Arc::new(feed.expect("a valid source")), config).map(Arc::new)
}

/// All batches that the agent has published.
pub(super) fn published(hub: &Hub) -> Vec<(u32, Vec<KvEvent>)> {
    let range =
        hub.feed().range(INCARNATION, 0..=u64::MAX, usize::MAX).expect("the present incarnation");
    range.batches.iter().map(|batch| (batch.rank(), batch.events().to_vec())).collect()
}

pub(super) fn stored(names: &[u64], locals: &[u64]) -> KvEvent {
    let blocks = names.iter().zip(locals);
    let blocks = blocks
        .map(|(&name, &local)| StoredBlock { name: BlockName(name), local: LocalHash(local) })
        .collect();
    KvEvent::Stored { parent: None, tier: Tier::Device, blocks }
}

pub(super) fn removed(names: &[u64]) -> KvEvent {
    let names = names.iter().copied().map(BlockName).collect();
    KvEvent::Removed { tier: Tier::Device, names }
}

#[test]
fn one_source_is_passed_through_and_cleared_at_each_rank() {
    let hub = hub(1, CopyMode::Counted).expect("a hub");
    let inlet = hub.open("engine", CopyMode::Counted).expect("the first");
    let taken = inlet.take(3, vec![stored(&[5, 6], &[1, 2])]).expect("taken");
    assert_eq!(taken, Taken { id: 0, sequence: Some(0), refused: 0 });
    inlet.take(3, vec![stored(&[5], &[1])]).expect("a second copy is published again");
    inlet.take(0, vec![removed(&[7])]).expect("taken");
    assert_eq!(inlet.take(0, Vec::new()), Ok(Taken { id: 1, sequence: None, refused: 0 }));
    inlet.clear();
    // Nothing was published since the last clear.
    inlet.clear();
    let taken = inlet.take(3, vec![stored(&[5], &[9])]).expect("taken");
    assert_eq!(taken, Taken { id: 2, sequence: Some(5), refused: 0 });
    inlet.close();
    let cleared = |rank| (rank, vec![KvEvent::Cleared]);
    let expected = [
        (3, vec![stored(&[5, 6], &[1, 2])]),
        (3, vec![stored(&[5], &[1])]),
        (0, vec![removed(&[7])]),
        cleared(0),
        cleared(3),
        (3, vec![stored(&[5], &[9])]),
        cleared(3),
    ];
    assert_eq!(published(&hub), expected);
    assert_eq!(inlet.take(3, vec![removed(&[5])]), Err(HubError::Closed));
    assert_eq!((hub.feed().status().incarnation, hub.reports()), (INCARNATION, Vec::new()));
}

#[test]
fn several_sources_are_consolidated() {
    let hub = hub(2, CopyMode::Set).expect("a hub");
    let engine = hub.open("engine", CopyMode::Counted).expect("the first");
    let manager = hub.open("manager", CopyMode::Set).expect("the second");
    let canonical: Vec<u64> =
        sequence_hashes(&[LocalHash(1), LocalHash(2)]).map(|name| name.0).collect();
    engine.take(0, vec![stored(&[5, 6], &[1, 2])]).expect("taken");
    let again = engine.take(0, vec![stored(&[5, 6], &[1, 2])]).expect("taken");
    assert_eq!(again.sequence, None, "the second copies are the engine's own business");
    let known = manager.take(0, vec![stored(&[70, 71], &[1, 2])]).expect("taken");
    assert_eq!(known.sequence, None);
    engine.clear();
    assert_eq!(published(&hub), [(0, vec![stored(&canonical, &[1, 2])])], "the manager holds both");
    manager.take(0, vec![removed(&[71])]).expect("taken");
    manager.close();
    let ends = [(0, vec![removed(&canonical[1..])]), (0, vec![KvEvent::Cleared])];
    assert_eq!(published(&hub)[1..], ends);
}

/// Like the ranks of one engine, each with its own publisher.
#[test]
fn sources_of_different_ranks_are_passed_through_side_by_side() {
    let config = HubConfig { sources_max: 2, ..HubConfig::DEFAULT };
    let hub = hub_of(config, CopyMode::Counted).expect("a hub");
    let first = hub.open("first", CopyMode::Counted).expect("a source");
    let second = hub.open("second", CopyMode::Counted).expect("a source");
    first.take(0, vec![stored(&[5], &[1])]).expect("taken");
    second.take(1, vec![stored(&[5], &[1])]).expect("taken");
    let taken = first.take(1, vec![removed(&[5])]).expect_err("the other's");
    assert_eq!(
        taken.to_string(),
        "rank 1 is source \"second\"'s already: give each source its own ranks, or consolidate them"
    );
    first.clear();
    assert_eq!(published(&hub)[2..], [(0, vec![KvEvent::Cleared])]);
    second.close();
    first.take(1, vec![stored(&[6], &[1])]).expect("nobody's any more");
    assert_eq!(hub.feed().status().held_blocks, 1);
}

/// A source may count differently in its next incarnation, although another source still holds blocks.
#[test]
fn a_new_incarnation_may_count_otherwise() {
    let hub = hub(2, CopyMode::Set).expect("a hub");
    let other = hub.open("other", CopyMode::Set).expect("the first");
    other.take(0, vec![stored(&[1], &[1])]).expect("taken");
    let source = hub.open("source", CopyMode::Counted).expect("the second");
    source.take(0, vec![stored(&[5], &[9]), stored(&[5], &[9])]).expect("taken");
    source.clear();
    source.set_copy_mode(CopyMode::Set).expect("consolidated");
    source.take(0, vec![stored(&[5], &[9]), stored(&[5], &[9])]).expect("taken");
    let gone = source.take(0, vec![removed(&[5])]).expect("taken");
    assert!(gone.sequence.is_some(), "one removal is enough where copies are not counted");
}

#[test]
fn what_is_not_taken_says_why() {
    let text = |error: HubError| error.to_string();
    let wrong = hub(SOURCES_MAX + 1, CopyMode::Set).map(drop).expect_err("too many");
    assert_eq!(text(wrong), "sources_max is 17, must be 1 to 16");
    assert_eq!(hub(0, CopyMode::Set).map(drop), Err(HubError::SourcesMax(0)));
    assert_eq!(hub(2, CopyMode::Counted).map(drop), Err(HubError::NotSet));

    let hub = hub(1, CopyMode::Set).expect("a hub");
    let otherwise = hub.open("a", CopyMode::Counted).map(drop).expect_err("another mode");
    assert_eq!(
        text(otherwise),
        "source \"a\" publishes with copy_mode counted, and this agent takes set: publish with set, or start the agent \
         with another --engine (vllm takes counted; sglang, trtllm and custom take set, and so does every engine with \
         --consolidate)"
    );
    let a = hub.open("a", CopyMode::Set).expect("the first");
    assert_eq!(hub.open("a", CopyMode::Set).map(drop), Err(HubError::NameTaken("a".to_owned())));
    let more = hub.open("b", CopyMode::Set).map(drop).expect_err("one more");
    assert_eq!(
        text(more),
        "source \"b\" is one more than the 1 that this agent takes: end another first"
    );
    a.close();
    let b = hub.open("b", CopyMode::Set).expect("the place is free");
    assert_eq!(a.take(0, Vec::new()), Err(HubError::Closed), "not into b's place");

    let names: Vec<u64> = (0..=EVENT_BLOCKS_MAX as u64).collect();
    let error = b.take(0, vec![removed(&names)]).map(drop).expect_err("too large");
    assert_eq!(text(error), "events[0] has 65537 blocks, the limit is 65536: cut it into several");
    for rank in (0..).take(WORKER_RANKS_MAX) {
        b.take(rank, vec![stored(&[1], &[1])]).expect("taken");
    }
    let error = b.take(9_999, vec![removed(&[1])]).map(drop).expect_err("one more");
    assert_eq!(text(error), "rank 9999 is refused: the worker has 1024 ranks, the maximum");
}

/// More than one journal batch takes.
#[test]
fn a_batch_of_any_size_is_taken() {
    let hub = hub(1, CopyMode::Set).expect("a hub");
    let inlet = hub.open("engine", CopyMode::Set).expect("the first");
    let events: Vec<_> = (0..20_000).map(|name| stored(&[name], &[name])).collect();
    inlet.take(0, events).expect("taken");
    let all: Vec<_> = published(&hub).into_iter().flat_map(|(_, events)| events).collect();
    assert_eq!(all.len(), 20_000);
    assert_eq!(hub.feed().status().held_blocks, 20_000);
}

#[test]
fn the_wrong_block_size_is_named_with_the_right_one() {
    use kvasir_engine::decode::{Batch, EngineKind, Place, RawEvent, RawStored, RawTokens};
    let hub = hub(1, CopyMode::Set).expect("a hub");
    let inlet = hub.open("engine", CopyMode::Set).expect("the first");
    let mut normaliser = Normaliser::new(NormaliserConfig::new(EngineKind::Vllm, 4));
    let stored = RawStored {
        names: vec![BlockName(1), BlockName(2)],
        parent: None,
        tokens: RawTokens::Ids(vec![0; 64]),
        local_hashes: None,
        block_size: 8,
        num_block_tokens: None,
        place: Place::default(),
        lora_id: None,
        lora_name: None,
        cache_salt: None,
        extra_keys: None,
        multimodal: None,
        look_ahead: None,
        window: None,
        slots: None,
    };
    let batch = Batch { ts_bits: 0, rank: None, events: vec![RawEvent::Stored(Box::new(stored))] };
    let drops = normaliser.normalise(batch).drops;
    inlet.count(|counts| counts.drops.merge(&drops));
    let problem = hub.reports().remove(0).problem.expect("a complaint");
    assert_eq!(
        problem,
        "the engine states 8 tokens per block on medium \"\", the agent is configured for 4: 2 block operations \
         were dropped; configure both alike"
    );
}

/// Numbers increase by one at each rank, for calls from any thread.
#[test]
fn many_threads_may_publish() {
    let hub = hub(3, CopyMode::Set).expect("a hub");
    let inlets: Vec<_> = ["a", "b", "c"]
        .map(|name| Arc::new(hub.open(name, CopyMode::Set).expect("a source")))
        .into();
    let mut threads = Vec::new();
    for (rank, inlet) in (0..2).flat_map(|rank| inlets.iter().map(move |inlet| (rank, inlet))) {
        let inlet = Arc::clone(inlet);
        threads.push(thread::spawn(move || {
            let events = |at: u64| vec![stored(&[at], &[at]), removed(&[at])];
            let taken = (0..500).map(|at| inlet.take(rank, events(at)).expect("taken").id);
            (rank, taken.collect::<Vec<_>>())
        }));
    }
    for thread in threads {
        let (rank, ids) = thread.join().expect("no panic");
        assert_eq!(ids, (0..500).collect::<Vec<_>>(), "rank {rank}");
    }
    assert_eq!(hub.feed().status().held_blocks, 0);
    let counts: BTreeMap<_, _> =
        hub.reports().into_iter().map(|at| (at.name, at.counts.operations)).collect();
    assert_eq!(counts.into_values().collect::<Vec<_>>(), [2_000; 3]);
}

#[test]
fn several_groups_of_a_consolidated_rank_make_it_doubtful() {
    let hub = hub(2, CopyMode::Set).expect("a hub");
    let inlet = hub.open("engine", CopyMode::Set).expect("the first");
    let group = Group { number: 1, kind: GroupKind::Mamba, block_size: 4, unit: 4, window: 0 };
    let blocks = vec![group.declaration()];
    let declared = KvEvent::Stored { parent: None, tier: Tier::Device, blocks };
    inlet.take(0, vec![declared, stored(&[5], &[1])]).expect("taken");
    let operations = |(_, events): &(u32, Vec<KvEvent>)| events.len();
    assert_eq!(published(&hub).iter().map(operations).sum::<usize>(), 1, "only the main group");
    let mut doubtful = 0;
    inlet.count(|counts| doubtful = counts.doubtful);
    assert_eq!(doubtful, 1);
}
