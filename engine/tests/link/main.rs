//! Tests a link against publishers built with the `zeromq` crate's sockets, which share no code with ours.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "helpers of tests, which may fail"
)]

mod publisher;
mod topics;

use kvasir_engine::decode::{EngineKind, decode};
use kvasir_engine::expiry::Expired;
use kvasir_engine::link::{Common, LinkConfig, ReplayOutcome, Resume, SourceCommand, run};
use kvasir_engine::normalise::NormaliserConfig;
use kvasir_engine::sequence::{SequencerConfig, stated_incarnation};
use kvasir_engine::zmtp::{Attach, Limits};
use kvasir_proto::types::{
    BatchOutcome, Cursor, Fingerprint, Incarnation, KvEvent, SourceState, SourceStatus,
};
use publisher::{Answer, Publisher, payload, payload_on};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// Longer than any test takes on a loaded machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const CHANNEL_COMMANDS: usize = 16;

fn common(permits: &Arc<Semaphore>) -> Common {
    Common { replay_permits: Arc::clone(permits), ..Common::new(1) }
}

fn config(publisher: &Publisher) -> LinkConfig {
    LinkConfig {
        attach: Attach::Connect(publisher.live_endpoint()),
        replay: Some(publisher.replay_endpoint()),
        replay_reply_timeout: Duration::from_secs(20),
        topic: bytes::Bytes::new(),
        normaliser: NormaliserConfig {
            default_rank: 3,
            ..NormaliserConfig::new(EngineKind::Vllm, 4)
        },
        sequencing: SequencerConfig {
            probe_interval: Duration::from_millis(200),
            retry_min: Duration::from_millis(5),
            retry_max: Duration::from_millis(20),
            replay_spread: Duration::from_millis(1),
            ..SequencerConfig::default()
        },
        zmtp: Limits { backoff_min: Duration::from_millis(5), ..Limits::DEFAULTS },
    }
}

/// State accumulated from the commands so far.
#[derive(Debug, Default)]
struct Received {
    held: BTreeSet<u64>,
    in_pool: BTreeSet<u64>,
    /// Number of blocks ever stored in the pool.
    pooled: usize,
    applied: Vec<u64>,
    clears: usize,
    incarnation: Option<Incarnation>,
    suspects_marked: usize,
    outcomes: BTreeMap<&'static str, u64>,
    replays: BTreeMap<&'static str, u64>,
    excesses: BTreeMap<&'static str, u64>,
    is_unreachable: bool,
    status: Option<SourceStatus<Instant>>,
}

impl Received {
    fn take(&mut self, command: SourceCommand) {
        match command {
            SourceCommand::Apply { cursor, rank, events, pool_events, .. } => {
                assert_eq!(rank, 3);
                self.applied.push(cursor.sequence);
                self.incarnation = Some(cursor.incarnation);
                for event in pool_events {
                    let KvEvent::Stored { blocks, .. } = event else { panic!("not {event:?}") };
                    self.pooled += blocks.len();
                    self.in_pool.extend(blocks.iter().map(|block| block.name.0));
                }
                for event in events {
                    match &event {
                        KvEvent::Stored { blocks, .. } => {
                            self.held.extend(blocks.iter().map(|block| block.name.0));
                        }
                        KvEvent::Cleared | KvEvent::ClearedTier(_) => self.held.clear(),
                        KvEvent::StoredNames { .. }
                        | KvEvent::Removed { .. }
                        | KvEvent::Gone { .. } => {
                            panic!("never published: {event:?}")
                        }
                    }
                }
            }
            SourceCommand::Expire(Expired { rank, event, early }) => {
                assert_eq!((rank, early), (3, 0));
                let KvEvent::Gone { names, .. } = event else { panic!("not {event:?}") };
                assert!(names.iter().all(|name| self.held.remove(&name.0)), "they were held");
            }
            SourceCommand::ExpireInPool(Expired { rank, event, early }) => {
                assert_eq!((rank, early), (0, 0), "a pool has one rank");
                let KvEvent::Gone { names, .. } = event else { panic!("not {event:?}") };
                assert!(names.iter().all(|name| self.in_pool.remove(&name.0)), "it had them");
            }
            SourceCommand::Clear => {
                self.clears += 1;
                self.held.clear();
            }
            SourceCommand::ClearLost | SourceCommand::Expired => self.held.clear(),
            SourceCommand::MarkSuspect => self.suspects_marked += 1,
            SourceCommand::DropSuspects => {}
            SourceCommand::Outcome { outcome, batches } => {
                let name = match outcome {
                    BatchOutcome::Applied => panic!("implied by Apply"),
                    BatchOutcome::Duplicate => "duplicate",
                    BatchOutcome::Stale => "stale",
                    BatchOutcome::Undecodable => "undecodable",
                    BatchOutcome::Lost => "lost",
                    BatchOutcome::OtherTopic => "other_topic",
                };
                *self.outcomes.entry(name).or_default() += batches;
            }
            SourceCommand::Replays { outcome, rounds } => {
                let name = match outcome {
                    ReplayOutcome::Completed => "completed",
                    ReplayOutcome::Failed => "failed",
                    ReplayOutcome::Cancelled => "cancelled",
                };
                *self.replays.entry(name).or_default() += rounds;
            }
            SourceCommand::Excess { excess, connections } => {
                *self.excesses.entry(excess.as_str()).or_default() += connections;
            }
            SourceCommand::Unreachable => self.is_unreachable = true,
            SourceCommand::Status(status) => self.status = Some(status),
        }
    }

    fn state(&self) -> Option<SourceState> {
        self.status.as_ref().map(|status| status.state)
    }

    fn applied_upto(&self) -> Option<u64> {
        self.status.as_ref().and_then(|status| status.applied).map(|cursor| cursor.sequence)
    }

    /// Whether the state is exact, and all blocks that the publisher announced in this life are held.
    fn is_exactly(&self, publisher: &Publisher) -> bool {
        self.state() == Some(SourceState::Exact) && self.held == publisher.truth()
    }

    fn lost(&self) -> u64 {
        self.outcomes.get("lost").copied().unwrap_or(0)
    }
}

/// The test's end of the link.
struct Receiver {
    commands: mpsc::Receiver<SourceCommand>,
    received: Received,
}

impl Receiver {
    /// Answers replays and receives commands until `done`.
    async fn until(
        &mut self,
        publisher: &mut Publisher,
        done: impl Fn(&Received, &Publisher) -> bool,
    ) {
        while !done(&self.received, publisher) {
            tokio::select! {
                command = self.commands.recv() => self.received.take(command.expect("the link runs")),
                () = publisher.serve_replay() => {}
            }
        }
    }

    async fn until_exact(&mut self, publisher: &mut Publisher) {
        self.until(publisher, |received, publisher| received.is_exactly(publisher)).await;
    }

    /// Publishes until `done`, without answering replays.
    async fn publish_until(&mut self, publisher: &mut Publisher, done: impl Fn(&Received) -> bool) {
        while !done(&self.received) {
            publisher.publish().await;
            // Lets the link run.
            tokio::task::yield_now().await;
            while let Ok(command) = self.commands.try_recv() {
                self.received.take(command);
            }
        }
    }

    /// Publishes until a batch arrives live, which shows that the subscription has reached the publisher.
    async fn until_subscribed(&mut self, publisher: &mut Publisher) {
        let seen = |received: &Received| {
            received.status.as_ref().is_some_and(|status| status.connected && status.head.is_some())
        };
        while !seen(&self.received) {
            publisher.publish().await;
            let next = publisher.newest();
            self.until(publisher, |received, _| seen(received) || received.applied_upto() >= next)
                .await;
        }
    }
}

fn resume(cursor: Cursor) -> SourceStatus {
    SourceStatus { applied: Some(cursor), ..SourceStatus::default() }
}

/// Runs a link concurrently with a script.
async fn with_link(
    config: LinkConfig,
    resume: Option<SourceStatus>,
    script: impl AsyncFnOnce(Receiver),
) {
    let (commands, received) = mpsc::channel(CHANNEL_COMMANDS);
    let permits = Arc::new(Semaphore::new(1));
    let cancel = CancellationToken::new();
    let resume = resume.map(|status| Resume { status, ..Resume::default() });
    let link = run(config, resume, commands, common(&permits), cancel);
    let receiver = Receiver { commands: received, received: Received::default() };
    let test = async {
        tokio::select! {
            () = link => panic!("the link ended"),
            () = script(receiver) => {}
        }
    };
    timeout(TEST_TIMEOUT, test).await.expect("in time");
}

#[tokio::test]
async fn a_new_engine_is_followed_batch_by_batch() {
    let mut publisher = Publisher::bind().await;
    with_link(config(&publisher), None, async |mut receiver| {
        receiver.until_subscribed(&mut publisher).await;
        for _ in 0..200 {
            publisher.publish().await;
        }
        receiver.until_exact(&mut publisher).await;
        let count = publisher.truth().len() as u64;
        assert_eq!(receiver.received.applied, (0..count).collect::<Vec<_>>());
        assert_eq!(receiver.received.clears, 1);
        assert_eq!(receiver.received.lost(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_first_attempt_that_fails_is_reported() {
    let mut publisher = Publisher::bind().await;
    let config = LinkConfig {
        // No process listens there.
        attach: Attach::parse("tcp://127.0.0.1:1", false).unwrap(),
        ..config(&publisher)
    };
    with_link(config, None, async |mut receiver| {
        receiver.until(&mut publisher, |received, _| received.is_unreachable).await;
    })
    .await;
}

#[tokio::test]
async fn blocks_with_a_time_to_live_leave_and_the_stream_goes_on() {
    let mut publisher = Publisher::bind().await;
    let mut config = config(&publisher);
    config.normaliser.medium_ttls = vec![("gpu".to_owned(), Duration::from_millis(500))];
    with_link(config, None, async |mut receiver| {
        for _ in 0..20 {
            publisher.publish().await;
        }
        let is_over = |received: &Received, publisher: &Publisher| {
            received.applied_upto() >= publisher.newest() && received.held.is_empty()
        };
        receiver.until(&mut publisher, is_over).await;
        receiver.until_subscribed(&mut publisher).await;
        publisher.restart().await;
        publisher.publish().await;
        receiver.until(&mut publisher, |received, _| received.clears >= 2).await;
        receiver.until(&mut publisher, is_over).await;
        let applied = receiver.received.applied.len() as u64;
        assert_eq!((applied > 20, receiver.received.lost()), (true, 0));
    })
    .await;
}

/// Blocks in a store that workers share outlive the engine, as does their time to live.
#[tokio::test]
async fn blocks_in_a_pool_stay_when_the_engine_restarts_until_their_time_is_over() {
    for (ttl, left) in [(Duration::from_secs(600), 1), (Duration::from_millis(500), 0)] {
        let mut publisher = Publisher::bind().await;
        let mut config = config(&publisher);
        config.normaliser.has_pool = true;
        config.normaliser.medium_ttls = vec![("external".to_owned(), ttl)];
        with_link(config, None, async |mut receiver| {
            receiver.until_subscribed(&mut publisher).await;
            publisher.publish_payload(&payload_on("EXTERNAL", 1.0, 7)).await;
            receiver.until(&mut publisher, |received, _| received.pooled == 1).await;
            publisher.restart().await;
            publisher.publish().await;
            let is_over = |received: &Received, _: &Publisher| {
                received.clears >= 2 && received.in_pool.len() == left
            };
            receiver.until(&mut publisher, is_over).await;
            assert_eq!(receiver.received.lost(), 0);
        })
        .await;
    }
}

#[tokio::test]
async fn a_replay_gives_old_blocks_no_new_time_to_live() {
    let mut publisher = Publisher::bind().await;
    let mut config = config(&publisher);
    config.normaliser.medium_ttls = vec![("GPU".to_owned(), Duration::from_secs(600))];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs_f64();
    for (name, age) in [(1, 3_600.0), (2, 1_000.0), (3, 60.0), (4, 0.0)] {
        publisher.publish_payload(&payload(now - age, name)).await;
    }
    with_link(config, None, async |mut receiver| {
        let young = BTreeSet::from([3, 4]);
        let settled = |received: &Received, publisher: &Publisher| {
            received.applied_upto() >= publisher.newest() && received.held == young
        };
        receiver.until(&mut publisher, settled).await;
        // Live batches are new, whatever the engine's clock shows.
        receiver.until_subscribed(&mut publisher).await;
        publisher.publish_payload(&payload(now - 3_600.0, 5)).await;
        let is_held = |received: &Received, _: &Publisher| received.held.contains(&5);
        receiver.until(&mut publisher, is_held).await;
    })
    .await;
}

#[tokio::test]
async fn a_late_subscriber_replays_what_it_missed() {
    for answer in [Answer::ThreeFrames, Answer::FourFrames] {
        let mut publisher = Publisher::bind().await;
        publisher.answers = vec![answer];
        for _ in 0..500 {
            publisher.publish().await;
        }
        with_link(config(&publisher), None, async |mut receiver| {
            receiver.until_exact(&mut publisher).await;
            assert_eq!(receiver.received.applied, (0..500).collect::<Vec<_>>());
        })
        .await;
    }
}

#[tokio::test]
async fn a_gap_is_replayed_and_a_lost_last_batch_probed() {
    let mut publisher = Publisher::bind().await;
    with_link(config(&publisher), None, async |mut receiver| {
        receiver.until_subscribed(&mut publisher).await;
        for _ in 0..10 {
            publisher.lose();
        }
        publisher.publish().await;
        receiver.until_exact(&mut publisher).await;
        publisher.lose();
        receiver.until_exact(&mut publisher).await;
        assert_eq!(receiver.received.lost(), 0);
        assert_eq!(receiver.received.suspects_marked, 0);
    })
    .await;
}

#[tokio::test]
async fn a_restart_begins_a_new_incarnation_wherever_it_stands() {
    // The new life ends before, at, and beyond the old cursor.
    for batches in [0, 1, 5, 20] {
        let mut publisher = Publisher::bind().await;
        publisher.publish().await;
        with_link(config(&publisher), None, async |mut receiver| {
            for _ in 0..4 {
                publisher.publish().await;
            }
            receiver.until_exact(&mut publisher).await;
            publisher.restart().await;
            for _ in 0..batches {
                publisher.publish().await;
            }
            receiver.until_exact(&mut publisher).await;
            assert!(receiver.received.clears >= 2);
            receiver.until_subscribed(&mut publisher).await;
            receiver.until_exact(&mut publisher).await;
            assert_eq!(receiver.received.suspects_marked, 0);
        })
        .await;
    }
}

#[tokio::test]
async fn connections_that_end_for_a_limit_are_counted() {
    let limits = || Limits { backoff_min: Duration::from_millis(5), ..Limits::DEFAULTS };
    for (zmtp, limit) in [
        (Limits { message_frames_max: 2, ..limits() }, "message_frames"),
        (Limits { frame_bytes_max: 8, ..limits() }, "frame_bytes"),
        (Limits { message_bytes_max: 9, ..limits() }, "message_bytes"),
    ] {
        let mut publisher = Publisher::bind().await;
        let live = LinkConfig { replay: None, zmtp: zmtp.clone(), ..config(&publisher) };
        with_link(live, None, async |mut receiver| {
            let cut = |received: &Received| received.excesses.contains_key(limit);
            receiver.publish_until(&mut publisher, cut).await;
            assert_eq!(receiver.received.excesses.len(), 1);
        })
        .await;
        // No batches arrive live any more, and requested ones also come in such messages.
        let replayed = LinkConfig { zmtp, ..config(&publisher) };
        with_link(replayed, None, async |mut receiver| {
            let cut = |received: &Received, _: &Publisher| received.excesses.contains_key(limit);
            receiver.until(&mut publisher, cut).await;
            assert_eq!(receiver.received.applied, []);
        })
        .await;
    }
}

#[tokio::test]
async fn a_stated_incarnation_ends_with_its_process_and_not_with_a_connection() {
    let mut publisher = Publisher::bind().await;
    publisher.states_life = true;
    with_link(config(&publisher), None, async |mut receiver| {
        receiver.until_subscribed(&mut publisher).await;
        for _ in 0..20 {
            publisher.publish().await;
        }
        receiver.until_exact(&mut publisher).await;
        let first = receiver.received.incarnation;
        // Without a statement, a life is proved by the copy of the cursor's batch.
        publisher.answers = vec![Answer::Without(publisher.newest().unwrap())];
        publisher.rebind().await;
        publisher.publish().await;
        receiver.until_exact(&mut publisher).await;
        receiver.until_subscribed(&mut publisher).await;
        receiver.until_exact(&mut publisher).await;
        assert_eq!((receiver.received.clears, receiver.received.incarnation), (1, first));
        publisher.answers = vec![Answer::FourFrames];
        // The next process reaches the same number as the previous one, so the number does not distinguish
        // them.
        let batches = publisher.newest().unwrap() + 2;
        publisher.restart().await;
        for _ in 0..batches {
            publisher.publish().await;
        }
        receiver.until_exact(&mut publisher).await;
        assert_eq!(receiver.received.clears, 2, "one new life");
        assert_ne!(receiver.received.incarnation, first);
        assert_eq!(receiver.received.suspects_marked, 0);
        assert_eq!(receiver.received.lost(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_stated_incarnation_is_known_again_after_a_checkpoint() {
    for (states_life, expected) in [(true, SourceState::Exact), (false, SourceState::Degraded)] {
        let mut publisher = Publisher::bind().await;
        publisher.states_life = states_life;
        for _ in 0..7 {
            publisher.lose();
        }
        let incarnation = stated_incarnation(&1_u128.to_be_bytes()).expect("an epoch");
        let fingerprint = Some(publisher.fingerprint(4));
        let cursor = Cursor { incarnation, sequence: 4, fingerprint };
        publisher.answers = vec![Answer::Without(4)];
        let resume = Some(resume(cursor));
        with_link(config(&publisher), resume, async |mut receiver| {
            let settled = |received: &Received, _: &Publisher| {
                let ends = [Some(SourceState::Exact), Some(SourceState::Degraded)];
                received.applied_upto() == Some(6) && ends.contains(&received.state())
            };
            receiver.until(&mut publisher, settled).await;
            assert_eq!(receiver.received.state(), Some(expected));
            assert_eq!((receiver.received.clears, receiver.received.lost()), (0, 0));
        })
        .await;
    }
}

#[tokio::test]
async fn a_hole_in_a_replay_is_asked_for_again() {
    let mut publisher = Publisher::bind().await;
    for _ in 0..50 {
        publisher.publish().await;
    }
    publisher.answers = vec![Answer::Without(20), Answer::Without(30), Answer::FourFrames];
    with_link(config(&publisher), None, async |mut receiver| {
        receiver.until_exact(&mut publisher).await;
        assert_eq!(receiver.received.applied, (0..50).collect::<Vec<_>>());
        assert_eq!(receiver.received.replays.get("cancelled"), Some(&2));
    })
    .await;
}

#[tokio::test]
async fn a_hole_that_stays_is_a_loss() {
    let mut publisher = Publisher::bind().await;
    for _ in 0..50 {
        publisher.publish().await;
    }
    publisher.answers = vec![Answer::Without(20)];
    with_link(config(&publisher), None, async |mut receiver| {
        receiver.until(&mut publisher, |received, _| received.applied_upto() == Some(49)).await;
        assert_eq!(receiver.received.state(), Some(SourceState::Degraded));
        assert_eq!(receiver.received.lost(), 1);
        assert_eq!(receiver.received.suspects_marked, 1);
        assert_eq!(receiver.received.held.len(), 49);
    })
    .await;
}

#[tokio::test]
async fn malformed_replies_fail_the_round_and_the_next_one_is_asked() {
    let mut publisher = Publisher::bind().await;
    for _ in 0..20 {
        publisher.publish().await;
    }
    publisher.answers = vec![
        Answer::Frames(&[b"", b"only"]),
        Answer::Frames(&[b"", b"topic", b"7 bytes", b"payload"]),
        Answer::Frames(&[b"", b"", b"12345678", b"payload", b"more"]),
        Answer::FourFrames,
    ];
    with_link(config(&publisher), None, async |mut receiver| {
        receiver.until_exact(&mut publisher).await;
        assert_eq!(receiver.received.suspects_marked, 0);
        assert_eq!(receiver.received.replays.get("failed"), Some(&3));
    })
    .await;
}

#[tokio::test]
async fn a_replay_socket_that_never_answers_is_given_up() {
    let mut publisher = Publisher::bind().await;
    for _ in 0..20 {
        publisher.publish().await;
    }
    publisher.answers = vec![Answer::Silence];
    let mut config = config(&publisher);
    config.replay_reply_timeout = Duration::from_millis(20);
    config.sequencing.replay_attempts_max = 2;
    with_link(config, None, async |mut receiver| {
        receiver
            .publish_until(&mut publisher, |received| {
                received.state() == Some(SourceState::Degraded)
            })
            .await;
        assert!(receiver.received.lost() >= 20, "{:?}", receiver.received);
        // A replay that works again finds the publisher in the same life: the lost batches stay lost.
        publisher.answers = vec![Answer::FourFrames];
        let newest = publisher.newest();
        receiver.until(&mut publisher, |received, _| received.applied_upto() >= newest).await;
        assert_eq!(receiver.received.state(), Some(SourceState::Degraded));
    })
    .await;
}

#[tokio::test]
async fn without_a_replay_socket_a_clear_heals() {
    let mut publisher = Publisher::bind().await;
    publisher.publish().await;
    let config = LinkConfig { replay: None, ..config(&publisher) };
    with_link(config, None, async |mut receiver| {
        let connected = |received: &Received, _: &Publisher| {
            received.status.as_ref().is_some_and(|status| status.connected)
        };
        receiver.until(&mut publisher, connected).await;
        receiver.publish_until(&mut publisher, |received| !received.applied.is_empty()).await;
        let degraded =
            |received: &Received, _: &Publisher| received.state() == Some(SourceState::Degraded);
        receiver.until(&mut publisher, degraded).await;
        assert_eq!(receiver.received.lost(), receiver.received.applied[0]);
        publisher.clear().await;
        publisher.publish().await;
        receiver.until_exact(&mut publisher).await;
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_read_is_counted_and_degrades() {
    let mut publisher = Publisher::bind().await;
    with_link(config(&publisher), None, async |mut receiver| {
        receiver.until_subscribed(&mut publisher).await;
        receiver.until_exact(&mut publisher).await;
        publisher.publish_raw(&[b"", b"too few"]).await;
        publisher.publish_payload(b"\xc1 is no msgpack").await;
        publisher.publish().await;
        let newest = publisher.newest();
        receiver
            .until(&mut publisher, |received, _| {
                received.applied_upto() == newest && received.outcomes.contains_key("undecodable")
            })
            .await;
        assert_eq!(receiver.received.state(), Some(SourceState::Degraded));
        assert_eq!(receiver.received.outcomes.get("undecodable"), Some(&2));
        assert_eq!(receiver.received.suspects_marked, 1);
        assert!(!receiver.received.applied.contains(&(newest.unwrap() - 1)));
    })
    .await;
}

#[tokio::test]
async fn a_checkpoint_resumes_in_the_same_incarnation_and_is_dropped_in_another() {
    let mut publisher = Publisher::bind().await;
    for _ in 0..10 {
        publisher.publish().await;
    }
    let cursor = Cursor {
        incarnation: Incarnation(5),
        sequence: 5,
        fingerprint: Some(publisher.fingerprint(5)),
    };
    let same = resume(cursor);
    with_link(config(&publisher), Some(same), async |mut receiver| {
        receiver.until(&mut publisher, |received, _| received.applied_upto() == Some(9)).await;
        assert_eq!(receiver.received.applied, [6, 7, 8, 9]);
        assert_eq!(receiver.received.clears, 0);
    })
    .await;
    let fingerprint = Some(Fingerprint::of(0, b"other"));
    let other = resume(Cursor { fingerprint, ..cursor });
    with_link(config(&publisher), Some(other), async |mut receiver| {
        receiver.until_exact(&mut publisher).await;
        assert!(receiver.received.clears >= 1);
        assert_eq!(receiver.received.applied, (0..10).collect::<Vec<_>>());
    })
    .await;
}

#[tokio::test]
async fn a_slow_receiver_loses_nothing() {
    let mut publisher = Publisher::bind().await;
    with_link(config(&publisher), None, async |mut receiver| {
        receiver.until_subscribed(&mut publisher).await;
        // More than channel and outbox hold together, while the receiver does not read.
        for _ in 0..5_000 {
            publisher.publish().await;
            tokio::task::yield_now().await;
        }
        receiver.until_exact(&mut publisher).await;
        let applied = &receiver.received.applied;
        assert!(applied.windows(2).all(|pair| pair[0] + 1 == pair[1]), "in order, without a hole");
        assert_eq!(receiver.received.lost(), 0);
    })
    .await;
}

#[tokio::test]
async fn a_replay_waits_for_a_permit() {
    let mut publisher = Publisher::bind().await;
    for _ in 0..5 {
        publisher.publish().await;
    }
    let (commands, received) = mpsc::channel(CHANNEL_COMMANDS);
    let permits = Arc::new(Semaphore::new(0));
    let link = run(config(&publisher), None, commands, common(&permits), CancellationToken::new());
    let mut receiver = Receiver { commands: received, received: Received::default() };
    let script = async {
        receiver
            .until(&mut publisher, |received, _| {
                received.status.as_ref().is_some_and(|status| status.connected)
            })
            .await;
        assert_eq!(publisher.requests, 0);
        permits.add_permits(1);
        receiver.until_exact(&mut publisher).await;
        assert!(publisher.requests > 0);
    };
    let test = async {
        tokio::select! {
            () = link => panic!("the link ended"),
            () = script => {}
        }
    };
    timeout(TEST_TIMEOUT, test).await.expect("in time");
    assert_eq!(permits.available_permits(), 1);
}

#[tokio::test]
async fn a_link_ends_when_cancelled_or_unwanted() {
    let publisher = Publisher::bind().await;
    let permits = Arc::new(Semaphore::new(1));
    let cancel = CancellationToken::new();
    let (commands, received) = mpsc::channel(1);
    let link = run(config(&publisher), None, commands, common(&permits), cancel.clone());
    cancel.cancel();
    timeout(TEST_TIMEOUT, link).await.expect("cancelled");
    drop(received);
    let (commands, received) = mpsc::channel(1);
    drop(received);
    let link = run(config(&publisher), None, commands, common(&permits), CancellationToken::new());
    timeout(TEST_TIMEOUT, link).await.expect("nobody listens");
}

#[test]
fn payloads_of_the_publisher_are_read() {
    let payload = payload(1.0, 7);
    let batch = decode(&payload, EngineKind::Vllm).unwrap();
    assert_eq!((batch.ts_bits, batch.events.len()), (1.0_f64.to_bits(), 1));
}
