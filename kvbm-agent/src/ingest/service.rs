use super::config::EXPIRY_INTERVAL;
use super::refusals::Who;
use super::session::{IngestSession, Source, failed};
use super::source::{IngestSource, Opened};
use super::{IngestConfig, IngestError, Refusals, StreamRefusal};
use kvasir_access::Principal;
use kvasir_feed::disk::SourceKind;
use kvasir_feed::hub::Hub;
use kvasir_process::access::{check_served, check_worker};
use kvasir_process::port::{client, principal};
use kvasir_process::publish::{self, Answers};
use kvasir_proto::convert::Hello;
use kvasir_proto::pb;
use kvasir_proto::pb::event_ingest_server::EventIngest;
use kvasir_proto::types::Cursor;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::select;
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};

/// gRPC service `EventIngest` of an agent's hub.
pub struct EventIngestService {
    shared: Arc<Shared>,
    streams: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// State shared by the streams.
struct Shared {
    hub: Arc<Hub>,
    config: IngestConfig,
    /// Sources by name, at most as many as the hub accepts.
    publishers: Mutex<BTreeMap<String, Source>>,
    refusals: Arc<Refusals>,
}

impl fmt::Debug for EventIngestService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventIngestService")
            .field("config", &self.shared.config)
            .finish_non_exhaustive()
    }
}

impl EventIngestService {
    /// Creates the service. Its streams end once `stop` is cancelled.
    #[must_use]
    pub fn new(hub: Arc<Hub>, config: IngestConfig, stop: CancellationToken) -> Self {
        let publishers = Mutex::new(persisted(&hub, &config));
        let shared = Shared { hub, config, publishers, refusals: Arc::default() };
        Self {
            shared: Arc::new(shared),
            streams: Arc::new(Semaphore::new(config.streams_max)),
            tasks: TaskTracker::new(),
            stop,
        }
    }

    /// Refusals of this service.
    #[must_use]
    pub fn refusals(&self) -> &Arc<Refusals> {
        &self.shared.refusals
    }

    /// Releases sources that had no stream for too long. Returns once the service is stopped and all its streams have
    /// ended.
    pub async fn run(&self) {
        let mut ticks = interval(EXPIRY_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            select! {
                () = self.stop.cancelled() => break,
                _ = ticks.tick() => self.shared.expire(),
            }
        }
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Returns the sources that published to an earlier agent and may continue. Logs and skips sources that cannot
/// continue.
fn persisted(hub: &Arc<Hub>, config: &IngestConfig) -> BTreeMap<String, Source> {
    let mut publishers = BTreeMap::new();
    for persisted in hub.persisted(SourceKind::Ingest) {
        match IngestSource::resume(hub, &persisted, config) {
            Ok(publisher) => {
                publishers.insert(persisted.name, Arc::new(Mutex::new(publisher)));
            }
            Err(error) => {
                tracing::warn!(%error, source = persisted.name, "a source from the journal cannot continue")
            }
        }
    }
    publishers
}

impl Shared {
    fn expire(&self) {
        self.publishers.lock().retain(|_, source| !source.lock().expire());
    }

    /// Accepts a stream of a source, and creates the source if it is new. Fails for another worker or block size.
    fn connect(&self, hello: &Hello) -> Result<(Source, Opened), IngestError> {
        let feed = self.hub.feed();
        let served = feed.address().clone();
        let present = feed.block_size();
        if hello.address != served {
            return Err(IngestError::OtherWorker { requested: hello.address.clone(), served });
        }
        if hello.block_size != present {
            let requested = hello.block_size;
            return Err(IngestError::BlockSize { served, requested, present });
        }
        // Locked throughout, so that no source is released meanwhile.
        let mut publishers = self.publishers.lock();
        let source = match publishers.get(&hello.source) {
            Some(source) => Arc::clone(source),
            None => {
                let publisher = IngestSource::open(&self.hub, hello, &self.config)?;
                let source = Arc::new(Mutex::new(publisher));
                publishers.insert(hello.source.clone(), Arc::clone(&source));
                source
            }
        };
        let opened = source.lock().connect(hello)?;
        Ok((source, opened))
    }
}

/// Sources that one caller may publish.
struct Callers {
    shared: Arc<Shared>,
    principal: Arc<Principal>,
}

impl publish::Sources for Callers {
    type Session = IngestSession;

    /// Opens a stream for a publisher. Fails if its identity may not publish for the worker, or the source refuses the
    /// stream.
    async fn open(
        &self,
        hello: &Hello,
        peer: Option<SocketAddr>,
    ) -> Result<(IngestSession, Option<Cursor>), Status> {
        check_worker(&self.principal, &hello.address)?;
        let shared = &self.shared;
        let served = shared.hub.feed().address();
        if !self.principal.sees(served.partition.tenant(), served.partition.model()) {
            check_served(&self.principal, &hello.address, served)?;
        }
        let (source, opened) = shared.connect(hello).map_err(|error| {
            let who = Who { source: &hello.source, peer };
            shared.refusals.stream(error.refusal(), who, &error);
            failed(error.code(), &error)
        })?;
        let session = IngestSession {
            source,
            name: hello.source.clone(),
            peer,
            number: opened.stream,
            fence: opened.fence,
            block_size: hello.block_size,
            refusals: Arc::clone(&shared.refusals),
        };
        Ok((session, opened.applied))
    }

    fn note_no_hello(&self, peer: Option<SocketAddr>, error: &Status) {
        let who = Who { source: "", peer };
        self.shared.refusals.stream(StreamRefusal::Malformed, who, &error.message());
    }

    fn stopping(&self) -> Status {
        Status::unavailable("the agent is stopping")
    }
}

#[tonic::async_trait]
impl EventIngest for EventIngestService {
    type PublishEventsStream = Answers;

    /// Accepts a stream of batches. Fails if `streams_max` streams are open.
    async fn publish_events(
        &self,
        request: Request<Streaming<pb::PublishEventsRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let place = Arc::clone(&self.streams).try_acquire_owned().map_err(|_full| {
            let error = IngestError::TooManyStreams { limit: self.shared.config.streams_max };
            let who = Who { source: "", peer: client(&request) };
            self.shared.refusals.stream(error.refusal(), who, &error);
            failed(error.code(), &error)
        })?;
        let callers = Callers { shared: Arc::clone(&self.shared), principal: principal(&request)? };
        let until = (&self.tasks, &self.stop);
        Ok(publish::publish_events(Arc::new(callers), request, until, place))
    }
}
