use super::config::{ANSWERS_QUEUED_MAX, EXPIRY_INTERVAL, HELLO_TIMEOUT};
use super::publisher::{Opened, Publisher};
use super::refusals::Who;
use super::stream::{self, End, OpenStream, Requests, Source, malformed, refused};
use super::{IngestConfig, IngestError, Refusals, StreamRefusal};
use kvasir_feed::disk::SourceKind;
use kvasir_feed::hub::Hub;
use kvasir_proto::convert::{Hello, Publication};
use kvasir_proto::pb;
use kvasir_proto::pb::event_ingest_server::EventIngest;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::select;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

/// The service `EventIngest` in front of an agent's hub.
pub struct EventIngestService {
    shared: Arc<Shared>,
    streams: Arc<Semaphore>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// What its streams share.
struct Shared {
    hub: Arc<Hub>,
    config: IngestConfig,
    /// By name; as many as the hub has places for.
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
    /// The service, until `stop` is cancelled: then its streams end.
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

    /// What publishers were refused here.
    #[must_use]
    pub fn refusals(&self) -> &Arc<Refusals> {
        &self.shared.refusals
    }

    /// Releases sources that had no stream for too long, until the service is stopped and all its streams
    /// have ended.
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

/// Sources that published to an agent before this one, and may continue.
fn persisted(hub: &Arc<Hub>, config: &IngestConfig) -> BTreeMap<String, Source> {
    let mut publishers = BTreeMap::new();
    for persisted in hub.persisted(SourceKind::Ingest) {
        match Publisher::resume(hub, &persisted, config) {
            Ok(publisher) => {
                publishers.insert(persisted.name, Arc::new(Mutex::new(publisher)));
            }
            Err(error) => {
                tracing::warn!(%error, source = persisted.name, "a source does not continue")
            }
        }
    }
    publishers
}

impl Shared {
    fn expire(&self) {
        self.publishers.lock().retain(|_, source| !source.lock().expire());
    }

    /// Accepts a stream of a source.
    fn open(&self, hello: &Hello) -> Result<(Source, Opened), IngestError> {
        let feed = self.hub.feed();
        let (served, present) = (feed.address().clone(), feed.block_size());
        if hello.address != served {
            return Err(IngestError::OtherWorker { requested: hello.address.clone(), served });
        }
        if hello.block_size != present {
            let requested = hello.block_size;
            return Err(IngestError::BlockSize { served, requested, present });
        }
        // Held throughout, so that no source is released meanwhile.
        let mut publishers = self.publishers.lock();
        let source = match publishers.get(&hello.source) {
            Some(source) => Arc::clone(source),
            None => {
                let publisher = Publisher::open(&self.hub, hello, &self.config)?;
                let source = Arc::new(Mutex::new(publisher));
                publishers.insert(hello.source.clone(), Arc::clone(&source));
                source
            }
        };
        let opened = source.lock().connect(hello)?;
        Ok((source, opened))
    }

    /// Serves a stream to its end.
    async fn serve(
        &self,
        peer: Option<SocketAddr>,
        mut requests: Requests,
        answers: &mpsc::Sender<Result<stream::Response, Status>>,
    ) -> End {
        let hello = match timeout(HELLO_TIMEOUT, requests.message()).await {
            Ok(first) => read_hello(first.map_err(Box::new)?),
            Err(_late) => Err(Status::deadline_exceeded("hello is missing")),
        };
        let hello = hello.map_err(|status| {
            let who = Who { source: "", peer };
            self.refusals.stream(StreamRefusal::Malformed, who, &status.message());
            Box::new(status)
        })?;
        let who = Who { source: &hello.source, peer };
        let (source, opened) = self.open(&hello).map_err(|error| {
            self.refusals.stream(error.refusal(), who, &error);
            refused(error.code(), &error)
        })?;
        let stream = OpenStream {
            who,
            refusals: &self.refusals,
            number: opened.stream,
            fence: opened.fence,
            block_size: hello.block_size,
            stall_timeout: self.config.stall_timeout,
            source: &source,
            answers,
        };
        let end = stream.serve(opened.applied, &mut requests).await;
        source.lock().disconnect(opened.stream);
        end
    }
}

fn read_hello(first: Option<pb::PublishEventsRequest>) -> Result<Hello, Status> {
    let Some(request) = first else {
        return Err(Status::invalid_argument("hello is required: send it first"));
    };
    match Publication::try_from(request).map_err(|error| *malformed(&error))? {
        Publication::Hello(hello) => Ok(hello),
        Publication::Batch(_) | Publication::Heartbeat(_) => {
            Err(Status::invalid_argument("hello is required before the first batch"))
        }
    }
}

#[tonic::async_trait]
impl EventIngest for EventIngestService {
    type PublishEventsStream = ReceiverStream<Result<stream::Response, Status>>;

    /// The stream is served by a task of its own, which ends with the service.
    async fn publish_events(
        &self,
        request: Request<Requests>,
    ) -> Result<Response<Self::PublishEventsStream>, Status> {
        let peer = request.remote_addr();
        let permit = Arc::clone(&self.streams).try_acquire_owned().map_err(|_full| {
            let error = IngestError::TooManyStreams { limit: self.shared.config.streams_max };
            self.shared.refusals.stream(error.refusal(), Who { source: "", peer }, &error);
            *refused(error.code(), &error)
        })?;
        let (answers, stream) = mpsc::channel(ANSWERS_QUEUED_MAX);
        let (shared, stop) = (Arc::clone(&self.shared), self.stop.clone());
        let requests = request.into_inner();
        self.tasks.spawn(async move {
            let _permit = permit;
            let end = select! {
                () = stop.cancelled() => Err(Box::new(Status::unavailable("the agent is stopping"))),
                end = shared.serve(peer, requests, &answers) => end,
            };
            let last = match end {
                Ok(None) => return,
                Ok(Some(answer)) => Ok(answer),
                Err(status) => Err(*status),
            };
            // A client that takes nothing, or is gone, does not get it.
            let _sent = timeout(shared.config.stall_timeout, answers.send(last)).await;
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}
