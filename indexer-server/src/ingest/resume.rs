//! Workers from a checkpoint or a sibling: registered immediately, fed with events once their blocks are in the index.

use super::link::LinkPlan;
use super::worker::Worker;
use super::{Ingest, IngestError};
use crate::partitions::{Partition, RegisteredBy, ResumedSource};
use kvasir_proto::convert::{Registration, WorkerAddress};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// A registered worker whose blocks are being restored. It receives no events yet. Pass it to [`Ingest::resume`], even
/// if the restore failed.
#[derive(Debug)]
pub struct Expected {
    worker: Arc<Worker>,
    plans: Vec<LinkPlan>,
}

/// A worker from a checkpoint or a sibling.
#[derive(Debug, Clone)]
pub struct Remembered {
    /// Registration of the worker.
    pub registration: Registration,
    /// Who registered the worker.
    pub registered_by: RegisteredBy,
    /// Names of the worker's sources, as far as they are known.
    pub sources: Vec<String>,
}

impl Ingest {
    /// Registers a worker that receives no events before [`Ingest::resume`]. Returns `None` if the worker is already
    /// registered.
    ///
    /// # Errors
    /// If the worker contradicts its partition, has an invalid endpoint, or exceeds a limit.
    pub async fn expect(&self, remembered: Remembered) -> Result<Option<Expected>, IngestError> {
        let Remembered { registration, registered_by, mut sources } = remembered;
        let _control = self.control.lock().await;
        let address = registration.address();
        if self.workers.contains_key(&address) {
            return Ok(None);
        }
        // An older server may have allowed both workers, or the other worker is newer.
        let rival = self.displaced(&registration, false)?.pop();
        if let Some(rival) = rival {
            return Err(rival.refusal(&registration));
        }
        let (worker, plans) = self.admit(registration, registered_by)?;
        sources.extend(plans.iter().map(|plan| plan.name.clone()));
        sources.sort_unstable();
        sources.dedup();
        let worker = Arc::new(worker.awaiting(sources));
        worker.mark_alive(self.origin);
        self.set_roles(&worker).await?;
        worker.partition.restoring(worker.kind()).begin(worker.id().clone());
        self.enter(address, Arc::clone(&worker));
        Ok(Some(Expected { worker, plans }))
    }

    /// Restores a worker, then admits its events. `bring` writes the worker's blocks into the index and returns the
    /// sources. Skips `bring` if the worker was removed meanwhile; the token that `bring` gets is cancelled when a
    /// removal waits. Drops a source with neither an endpoint nor an incarnation.
    ///
    /// # Errors
    /// If the index refuses a source, or the server is stopping.
    pub async fn resume(
        self: &Arc<Self>,
        expected: Expected,
        bring: impl AsyncFnOnce(&Arc<Partition>, &CancellationToken) -> Vec<ResumedSource>,
    ) -> Result<(), IngestError> {
        let Expected { worker, plans } = expected;
        // A removal waits for this lock.
        let mut links = worker.links.lock().await;
        if worker.is_removed() {
            return Ok(());
        }
        let resumed = bring(&worker.partition, &worker.cancel).await;
        let fed = |at: &&ResumedSource| plans.iter().any(|plan| plan.name == at.name);
        let fed: Vec<_> = resumed.iter().filter(fed).collect();
        self.drop_aged(&worker, &fed).await?;
        let others = self.attach(&worker, &mut links, plans, resumed).await?;
        for resumed in others {
            if !self.resume_publisher(&worker, &resumed).await {
                self.writer.remove_source(resumed.source).await?;
            }
        }
        worker.mark_alive(self.origin);
        worker.admit_events();
        Ok(())
    }

    /// Registrations of the restored workers, with who registered them, and registrations of the workers still being
    /// restored.
    #[must_use]
    pub fn restored(&self) -> (Vec<(Registration, RegisteredBy)>, Vec<Registration>) {
        let entries = self.workers.iter().map(|entry| Arc::clone(&entry));
        let (restored, expected): (Vec<_>, Vec<_>) = entries.partition(|worker| worker.is_open());
        let wanted = |at: &Arc<Worker>| (at.registration.clone(), at.registered_by());
        let registration = |at: &Arc<Worker>| at.registration.clone();
        (restored.iter().map(wanted).collect(), expected.iter().map(registration).collect())
    }

    /// Names of a worker's known sources while its blocks are being restored. The sources may not be in the index yet.
    /// Empty once the restore is complete.
    #[must_use]
    pub fn awaited_sources(&self, address: &WorkerAddress) -> Vec<String> {
        let worker = self.workers.get(address);
        worker.map_or_else(Vec::new, |worker| worker.awaited_sources().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::{Accepted, Arrival, testing};
    use kvasir_proto::convert::{Heartbeat, Hello, PublishedBatch};
    use kvasir_proto::pb;
    use kvasir_proto::types::{CopyMode, HolderKind, Incarnation, SourceState};
    use std::time::Duration;
    use tokio::time::sleep;

    fn ingest() -> Arc<Ingest> {
        Arc::new(testing::ingest())
    }

    fn registration(worker: &str) -> Registration {
        let request = pb::RegisterWorkerRequest {
            worker_id: worker.to_owned(),
            model: "m".to_owned(),
            block_size: 16,
            ..Default::default()
        };
        request.try_into().expect("a valid registration")
    }

    #[tokio::test]
    async fn who_is_not_back_is_named_until_it_is_or_goes() {
        let ingest = ingest();
        let mut expected = Vec::new();
        for worker in ["a", "b"] {
            let registered = ingest.expect(remembered(worker)).await.expect("a valid worker");
            expected.extend(registered);
        }
        let partition = Arc::clone(&expected[0].worker.partition);
        let named = || -> Vec<String> {
            partition
                .restoring(HolderKind::Worker)
                .among(None)
                .iter()
                .map(ToString::to_string)
                .collect()
        };
        assert_eq!(named(), ["a", "b"]);
        ingest.resume(expected.remove(0), async |_, _| Vec::new()).await.expect("nothing refused");
        assert_eq!(named(), ["b"]);
        ingest.remove(registration("b").address()).await.expect("a known worker");
        assert_eq!(named(), Vec::<String>::new());
        ingest.stop().await;
    }

    fn remembered(worker: &str) -> Remembered {
        let registered_by = RegisteredBy::Unknown;
        let sources = vec!["s".to_owned()];
        Remembered { registration: registration(worker), registered_by, sources }
    }

    #[tokio::test]
    async fn sources_are_awaited_until_the_worker_is_back() {
        let ingest = ingest();
        let address = registration("w").address();
        let request = pb::RegisterWorkerRequest {
            endpoints: vec![pb::EngineEndpoint {
                endpoint: "tcp://127.0.0.1:1".to_owned(),
                ..Default::default()
            }],
            ..(&registration("w")).into()
        };
        let registration = request.try_into().expect("a valid registration");
        let expected = ingest.expect(Remembered { registration, ..remembered("w") }).await;
        let expected = expected.expect("a valid worker").expect("a new one");
        assert_eq!(ingest.awaited_sources(&address), ["s", "tcp://127.0.0.1:1"]);
        ingest.resume(expected, async |_, _| Vec::new()).await.expect("nothing refused");
        assert_eq!(ingest.awaited_sources(&address), Vec::<String>::new());
        ingest.stop().await;
    }

    #[tokio::test]
    async fn what_somebody_has_asked_for_stays_so() {
        let ingest = ingest();
        let wanted = async |change: Change| {
            let registration = registration("w");
            match change {
                Change::Configure => ingest.configure(registration).await,
                Change::Register => ingest.register(registration).await,
                Change::Introduce => ingest.introduce(&registration, false).await,
            }
            .expect("the same registration");
            ingest.restored().0.pop().expect("a worker").1
        };
        let remembered = remembered("w");
        let expected = ingest.expect(remembered.clone()).await.expect("a valid worker");
        ingest.resume(expected.expect("new"), async |_, _| Vec::new()).await.expect("room");
        assert_eq!(ingest.restored().0.pop().expect("a worker").1, RegisteredBy::Unknown);
        for change in [Change::Register, Change::Introduce] {
            assert_eq!(wanted(Change::Configure).await, RegisteredBy::Configuration);
            assert_eq!(wanted(change).await, RegisteredBy::Request);
            assert_eq!(wanted(Change::Configure).await, RegisteredBy::Request);
            ingest.remove(remembered.registration.address()).await.expect("a known worker");
        }
        ingest.stop().await;
    }

    #[derive(Clone, Copy)]
    enum Change {
        Configure,
        Register,
        Introduce,
    }

    /// A worker with this block size whose agent is at `url`.
    fn registration_of(block_size: u32, url: &str) -> Registration {
        let local_indexer = Some(url.to_owned());
        Registration {
            block_size,
            local_indexer,
            lease: Some(Duration::from_secs(60)),
            ..registration("w")
        }
    }

    fn agents(ingest: &Ingest) -> Vec<Option<String>> {
        ingest.restored().0.into_iter().map(|(at, _by)| at.local_indexer).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn who_took_a_place_keeps_it_as_long_as_it_is_heard() {
        let ingest = ingest();
        let at = |url: &str| Some(url.to_owned());
        for url in ["http://a:1", "http://b:1"] {
            ingest.introduce(&registration_of(16, url), false).await.expect("it takes the place");
            assert_eq!(agents(&ingest), [at(url)]);
        }
        let another = registration_of(16, "http://c:1");
        for _ in 0..5 {
            sleep(Duration::from_secs(40)).await;
            let refused = ingest.introduce(&another, false).await.expect_err("two speak for one");
            assert!(matches!(refused, IngestError::Disputed { .. }), "{refused}");
            ingest.introduce(&registration_of(16, "http://b:1"), false).await.expect("it is there");
        }
        sleep(Duration::from_secs(60)).await;
        ingest.introduce(&another, false).await.expect("who had it is gone");
        // An ordered log shows which registration is newer.
        ingest.introduce(&registration_of(16, "http://d:1"), true).await.expect("it came later");
        assert_eq!(agents(&ingest), [at("http://d:1")]);
        ingest.stop().await;
    }

    /// A connected agent keeps its worker, even after its lease expires.
    #[tokio::test]
    async fn who_speaks_keeps_its_place() {
        let ingest = ingest();
        let registration = registration_of(16, "http://a:1");
        ingest.introduce(&registration, false).await.expect("a worker");
        let hello = Hello {
            address: registration.address(),
            source: "s".to_owned(),
            block_size: 16,
            incarnation: Incarnation(1),
            copy_mode: CopyMode::Set,
            first_sequence: None,
            head_sequence: None,
            local_indexer: None,
        };
        let Accepted { session, .. } =
            ingest.open(&hello, Arrival::default()).await.expect("a stream");
        let another = registration_of(16, "http://b:1");
        assert!(
            session.agent_stream(&hello).is_none(),
            "a publisher of the worker's, and not its agent"
        );
        let of_agent = Hello { local_indexer: Some("http://a:1".to_owned()), ..hello };
        let speaking = session.agent_stream(&of_agent);
        assert!(speaking.is_some());
        let refused = ingest.introduce(&another, false).await.expect_err("it speaks");
        let text = "another agent serves worker w (model m), with local_indexer_endpoint http://a:1, not \
                    http://b:1: give each its own worker_id, or stop the other";
        assert_eq!(refused.to_string(), text);
        ingest.introduce(&registration, false).await.expect("it is the one");
        drop(speaking);
        ingest.introduce(&another, false).await.expect("it takes the place");
        session.close().await;
        // A second move within the lease, as when a pod moves twice.
        let of_other = Hello { local_indexer: Some("http://b:1".to_owned()), ..of_agent };
        let Accepted { session, .. } =
            ingest.open(&of_other, Arrival::default()).await.expect("a stream");
        drop(session.agent_stream(&of_other).expect("it is the agent"));
        ingest
            .introduce(&registration_of(16, "http://c:1"), false)
            .await
            .expect("it takes the place");
        session.close().await;
        ingest.stop().await;
    }

    /// A stream that reads a log from an earlier position is never exact, not even for a moment: a query at that moment
    /// would believe the blocks of an earlier incarnation.
    #[tokio::test]
    async fn a_source_is_not_exact_while_its_log_is_read() {
        let ingest = ingest();
        let registration = registration_of(16, "http://a:1");
        ingest.introduce(&registration, true).await.expect("a worker");
        let hello = Hello {
            address: registration.address(),
            source: "s".to_owned(),
            block_size: 16,
            incarnation: Incarnation(1),
            copy_mode: CopyMode::Set,
            first_sequence: Some(0),
            head_sequence: Some(0),
            local_indexer: None,
        };
        let state = || {
            let partition = ingest.partitions.list().remove(0);
            let index = partition.shard_of(&registration.worker).read();
            let worker = index.worker(&registration.worker).expect("it is fed");
            worker.sources().next().expect("a source").2.state
        };
        let arrival = Arrival::Broker { in_order: true, is_behind: true };
        for round in 0..3 {
            let Accepted { session, .. } = ingest.open(&hello, arrival).await.expect("a stream");
            if round == 0 {
                let batch = PublishedBatch { sequence: 0, rank: 0, events: Vec::new() };
                session.apply(batch).await.wait().await.expect("it is taken");
                session.heartbeat(Heartbeat::at(Some(0))).await;
            }
            assert_eq!(state(), SourceState::CatchingUp, "round {round}");
            session.caught_up().await;
            session.expected().await;
            assert_eq!(state(), SourceState::Exact, "round {round}");
            if round == 1 {
                // Another stream replaces this open one.
                continue;
            }
            session.close().await;
        }
        ingest.stop().await;
    }

    #[tokio::test]
    async fn who_cannot_be_registered_removes_nobody() {
        let ingest = ingest();
        ingest.register(registration("other")).await.expect("a first worker");
        ingest.introduce(&registration_of(16, "http://a:1"), false).await.expect("a worker");
        for in_order in [false, true] {
            let refused = ingest.introduce(&registration_of(32, "http://b:1"), in_order).await;
            let refused = refused.expect_err("blocks of another size");
            assert!(refused.to_string().contains("block_size is 32"), "{refused}");
            assert_eq!(ingest.workers.len(), 2);
        }
        ingest.stop().await;
    }
}
