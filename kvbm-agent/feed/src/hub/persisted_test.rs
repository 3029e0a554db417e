//! Whether a restarted agent continues its incarnation, if only some sources publish again.

use super::*;
use crate::disk::{
    DiskConfig, Flaws, NewIncarnation, PersistedSource, SourceKind, SourcePosition, Verdict, open,
};
use crate::feed::{Feed, SourceConfig};
use crate::journal::JournalConfig;
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::types::{
    BlockName, CopyMode, Cursor, DpRank, Incarnation, KvEvent, LocalHash, PartitionKey,
    SourceState, SourceStatus, StoredBlock, Tier, WorkerId,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const INCARNATION: Incarnation = Incarnation(1);
const FRESH: Incarnation = Incarnation(2);
const ENGINE: Incarnation = Incarnation(77);

/// Starts an agent.
fn start(folder: &Path, life: Incarnation) -> (Arc<Hub>, Vec<PersistedSource>) {
    let partition = PartitionKey::new("m", "").expect("a name");
    let address = WorkerAddress { partition, worker: WorkerId::new("w").expect("a name") };
    let disk = DiskConfig {
        folder: folder.to_owned(),
        address: address.clone(),
        block_size: 4,
        lora_names: BTreeMap::new(),
        is_consolidated: false,
    };
    let journal = JournalConfig { copy_mode: CopyMode::Set, ..JournalConfig::DEFAULT };
    let opened = open(&disk, journal, (life, 0)).expect("a folder of its own");
    let source = SourceConfig {
        address,
        name: "agent".to_owned(),
        block_size: 4,
        incarnation: life,
        first_sequence: 0,
        journal,
    };
    let (feed, persisted) = Feed::open(source, Some(opened)).expect("a valid source");
    let config = HubConfig { sources_max: 3, ..HubConfig::DEFAULT };
    let hub = Hub::resume(Arc::new(feed), config, persisted.clone()).expect("a valid hub");
    (Arc::new(hub), persisted.positions)
}

fn open_source(hub: &Arc<Hub>, name: &str) -> Inlet {
    hub.open_persisted(name, CopyMode::Set, SourceKind::Ingest).expect("a place")
}

fn cursor(sequence: u64) -> Cursor {
    Cursor { incarnation: ENGINE, sequence, fingerprint: None }
}

fn stored(name: u64) -> Vec<KvEvent> {
    let blocks = vec![StoredBlock { name: BlockName(name), local: LocalHash(name) }];
    vec![KvEvent::Stored { parent: None, tier: Tier::Device, blocks }]
}

/// The state an agent leaves: each source holds one block at its own rank.
fn left(folder: &Path, names: &[&str]) {
    let (hub, _) = start(folder, INCARNATION);
    hub.begin();
    for (rank, name) in (0..).zip(names) {
        let inlet = open_source(&hub, name);
        inlet.take_at(rank, stored(u64::from(rank)), cursor(5)).expect("taken");
    }
}

fn verdict(hub: &Hub) -> Verdict {
    hub.feed().disk().expect("it is on disk").status().verdict
}

fn here(hub: &Hub) -> (Incarnation, usize, bool) {
    let status = hub.feed().status();
    (status.incarnation, status.held_blocks, hub.feed().is_settled())
}

fn cleared(hub: &Hub, after: u64) -> Vec<DpRank> {
    let range = hub
        .feed()
        .range(INCARNATION, after..=u64::MAX, usize::MAX)
        .expect("the incarnation continues");
    let batches = range.batches.iter();
    batches.filter(|batch| batch.events() == [KvEvent::Cleared]).map(|batch| batch.rank()).collect()
}

#[test]
fn an_engine_that_was_received_continues_the_incarnation() {
    let folder = tempfile::tempdir().expect("a folder");
    left(folder.path(), &["a"]);
    let by_state = |inlet: &Inlet| {
        let state = SourceState::CatchingUp;
        inlet.show(SourceStatus { state, connected: true, ..SourceStatus::default() });
        assert!(inlet.pending().is_some(), "that says nothing yet");
        let state = SourceState::Exact;
        inlet.show(SourceStatus { state, connected: true, ..SourceStatus::default() });
    };
    let by_batch = |inlet: &Inlet| {
        inlet.take_at(0, stored(9), cursor(6)).expect("taken");
    };
    for (hear, held, stands) in
        [(&by_state as &dyn Fn(&Inlet), 1, 5), (&by_batch as &dyn Fn(&Inlet), 2, 6)]
    {
        let (hub, persisted) = start(folder.path(), FRESH);
        assert_eq!(persisted[0].cursor, cursor(5));
        let inlet = open_source(&hub, "a");
        hub.begin();
        assert_eq!(here(&hub), (INCARNATION, 1, false));
        assert_eq!(inlet.pending(), Some(persisted[0].clone()));
        hear(&inlet);
        assert_eq!((here(&hub), verdict(&hub)), ((INCARNATION, held, true), Verdict::Continued));
        assert_eq!(inlet.pending(), None);
        drop((inlet, hub));
        assert_eq!(start(folder.path(), FRESH).1[0].cursor, cursor(stands));
    }
}

#[test]
fn an_engine_that_is_another_ends_it() {
    let folder = tempfile::tempdir().expect("a folder");
    left(folder.path(), &["a"]);
    let (hub, _) = start(folder.path(), FRESH);
    let inlet = open_source(&hub, "a");
    hub.begin();
    inlet.clear();
    assert_eq!(
        (here(&hub), verdict(&hub)),
        ((FRESH, 0, true), Verdict::NewIncarnation(NewIncarnation::Engine))
    );
    inlet.take_at(0, stored(1), cursor(0)).expect("taken");
    assert_eq!(hub.feed().status().head, Some(0), "its numbers begin again");
    drop((inlet, hub));
    // The disk has the new incarnation, and nothing proves its end.
    let (hub, persisted) = start(folder.path(), Incarnation(3));
    assert_eq!((here(&hub), persisted.len()), ((FRESH, 1, false), 1));
    // Nor does anything prove that it continues.
    let inlet = open_source(&hub, "a");
    hub.begin();
    inlet.lose();
    assert_eq!(here(&hub), (Incarnation(3), 0, true));
}

#[test]
fn where_others_hold_blocks_its_ranks_are_cleared() {
    let folder = tempfile::tempdir().expect("a folder");
    left(folder.path(), &["a", "b", "c"]);
    let (hub, _) = start(folder.path(), FRESH);
    // The third source does not return.
    let a = open_source(&hub, "a");
    let b = open_source(&hub, "b");
    hub.begin();
    assert_eq!((here(&hub), cleared(&hub, 3)), ((INCARNATION, 2, false), vec![2]));
    a.close();
    assert_eq!((here(&hub), verdict(&hub)), ((INCARNATION, 1, true), Verdict::Continued));
    assert_eq!(cleared(&hub, 3), [2, 0]);
    b.clear();
    assert_eq!((here(&hub), cleared(&hub, 3)), ((INCARNATION, 0, true), vec![2, 0, 1]));
    drop((a, b, hub));
    assert_eq!(start(folder.path(), FRESH).1, [], "nobody is waited for");
}

/// A rank is reserved for its source until it is decided whether that source continues.
#[test]
fn a_rank_is_kept_until_it_is_known_who_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    left(folder.path(), &["a"]);
    let (hub, _) = start(folder.path(), FRESH);
    let a = open_source(&hub, "a");
    let b = open_source(&hub, "b");
    hub.begin();
    let persisted = HubError::RankReserved { rank: 0, owner: "a".to_owned() };
    assert_eq!(b.check_turn(0), Err(persisted.clone()));
    assert_eq!(b.take_at(0, stored(7), cursor(0)).map(drop), Err(persisted));
    assert_eq!(b.check_turn(1), Ok(()));
    // The source returns in another incarnation, and publishes for another rank.
    a.clear();
    a.take_at(1, stored(8), cursor(0)).expect("taken");
    assert_eq!(b.check_turn(0), Ok(()));
    b.take_at(0, stored(7), cursor(0)).expect("taken");
    assert_eq!(here(&hub), (FRESH, 2, true));
    let taken = HubError::RankTaken { rank: 1, owner: "a".to_owned() };
    assert_eq!(b.take_at(1, stored(7), cursor(1)).map(drop), Err(taken));
}

#[test]
fn what_nobody_can_prove_is_over() {
    for direct in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        if direct {
            // Like an engine that embeds the agent.
            let (hub, _) = start(folder.path(), INCARNATION);
            hub.begin();
            let inlet = hub.open("engine", CopyMode::Set).expect("a place");
            inlet.take(0, stored(1)).expect("taken");
        } else {
            left(folder.path(), &["a"]);
        }
        let (hub, _) = start(folder.path(), FRESH);
        hub.begin();
        assert_eq!(here(&hub), (FRESH, 0, true));
        assert_eq!(verdict(&hub), Verdict::NewIncarnation(NewIncarnation::NoSource));
    }
}

#[test]
fn another_kind_or_copy_mode_does_not_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    left(folder.path(), &["a"]);
    let (hub, _) = start(folder.path(), FRESH);
    let relay = hub.open_persisted("a", CopyMode::Set, SourceKind::Relay).expect("a place");
    hub.begin();
    assert_eq!((relay.pending(), here(&hub)), (None, (FRESH, 0, true)));
}

#[test]
fn what_was_lost_before_is_not_forgotten() {
    let folder = tempfile::tempdir().expect("a folder");
    left(folder.path(), &["a"]);
    let (hub, _) = start(folder.path(), FRESH);
    let inlet = open_source(&hub, "a");
    hub.begin();
    inlet.take_at(0, stored(1), cursor(6)).expect("taken");
    inlet.lose();
    drop((inlet, hub));
    let (hub, persisted) = start(folder.path(), FRESH);
    assert!(persisted[0].flaws.has_lost);
    let inlet = open_source(&hub, "a");
    hub.begin();
    let exact =
        SourceStatus { state: SourceState::Exact, connected: true, ..SourceStatus::default() };
    inlet.show(exact.clone());
    assert_eq!(hub.reports()[0].status.state, SourceState::Degraded);
    inlet.take_at(0, vec![KvEvent::Cleared], cursor(7)).expect("taken");
    inlet.show(exact);
    assert_eq!(hub.reports()[0].status.state, SourceState::Exact);
}

/// The process may be killed right after a batch is written, before it counts anything else.
#[test]
fn a_batch_and_its_flaws_are_one_write() {
    let lost = Flaws { has_lost: true, ..Flaws::default() };
    let lacks = Flaws { lacks_blocks: true, ..Flaws::default() };
    for (flaws, state) in [(lost, SourceState::Degraded), (lacks, SourceState::Partial)] {
        let folder = tempfile::tempdir().expect("a folder");
        let (hub, _) = start(folder.path(), INCARNATION);
        hub.begin();
        let inlet = open_source(&hub, "a");
        let at = |sequence| SourcePosition { flaws, ..SourcePosition::from(cursor(sequence)) };
        inlet.take_at(0, stored(1), at(0)).expect("taken");
        // A clear ends earlier flaws.
        let cleared = [vec![KvEvent::Cleared], stored(2)].concat();
        inlet.take_at(0, cleared, at(1)).expect("taken");
        inlet.take_at(0, stored(3), cursor(2)).expect("taken");
        drop((inlet, hub));
        let (hub, persisted) = start(folder.path(), FRESH);
        assert_eq!(persisted[0].flaws, flaws);
        let inlet = open_source(&hub, "a");
        hub.begin();
        let exact =
            SourceStatus { state: SourceState::Exact, connected: true, ..SourceStatus::default() };
        inlet.show(exact);
        assert_eq!(hub.reports()[0].status.state, state);
    }
}

#[test]
fn blocks_that_were_refused_before_the_first_batch_are_not_forgotten() {
    let folder = tempfile::tempdir().expect("a folder");
    let (hub, _) = start(folder.path(), INCARNATION);
    hub.begin();
    let a = open_source(&hub, "a");
    let b = open_source(&hub, "b");
    a.take_at(0, stored(1), cursor(0)).expect("taken");
    let refused = b.take_at(0, stored(2), cursor(0)).expect_err("the rank is of another source");
    b.count_refused(1, &refused);
    b.take_at(1, stored(3), cursor(1)).expect("taken");
    drop((a, b, hub));
    let (_hub, persisted) = start(folder.path(), FRESH);
    let lacking = persisted.iter().filter(|at| at.flaws.lacks_blocks).map(|at| &*at.name);
    assert_eq!(lacking.collect::<Vec<_>>(), ["b"]);
}
