//! Serves `LocalIndexer` over NATS request and reply, with the same service as over gRPC.

use super::config::{BrokerStatus, QUESTION_BYTES_MAX};
use super::connection::Connection;
use super::error::BrokerError;
use super::reply::{CutOff, EncodedPart, Reply};
use crate::service::{LocalIndexerService, failed};
use async_nats::Message;
use bytes::Bytes;
use futures::stream::{self, BoxStream, SelectAll};
use futures::{Stream, StreamExt};
use kvasir_feed::pause::Pauses;
use kvasir_process::nats::NatsServers;
use kvasir_process::port::let_in;
use kvasir_process::telemetry::request_span;
use kvasir_proto::broker::{LocalCall, Namespace, local_subject};
use kvasir_proto::code::ErrorCode;
use kvasir_proto::codec::decode;
use kvasir_proto::pb::local_indexer_server::LocalIndexer;
use std::sync::Arc;
use tokio::select;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tonic::{Request, Status};
use tracing::Instrument;

/// Answers requests over NATS, and reconnects with backoff, until the service ends. Reports in `status` whether
/// requests are received.
pub async fn answer_questions(
    service: Arc<LocalIndexerService>,
    servers: NatsServers,
    status: Arc<watch::Sender<BrokerStatus>>,
) {
    let stop = service.stop().clone();
    let places = Arc::new(Semaphore::new(service.config().streams_max));
    let answerer = Answerer { service, places, status };
    let mut pauses = Pauses::default();
    loop {
        let ended = answerer.connection(&servers, &mut pauses).await;
        answerer.status.send_modify(|status| status.answering = false);
        let Err(error) = ended else { return };
        if let Some(num_suppressed) = pauses.admit_line() {
            tracing::warn!(%error, num_suppressed, "requests of indexes are not received");
        }
        if !pauses.wait(&stop).await {
            return;
        }
    }
}

struct Answerer {
    service: Arc<LocalIndexerService>,
    /// Permits for answers in progress.
    places: Arc<Semaphore>,
    status: Arc<watch::Sender<BrokerStatus>>,
}

impl Answerer {
    /// Connects, and answers requests until the connection breaks (an error) or the service ends.
    async fn connection(
        &self,
        servers: &NatsServers,
        pauses: &mut Pauses,
    ) -> Result<(), BrokerError> {
        let stop = self.service.stop();
        let connection = select! {
            () = stop.cancelled() => return Ok(()),
            connection = Connection::connect(servers) => connection?,
        };
        let mut questions = self.subscribe(&connection, servers.namespace()).await?;
        self.status.send_modify(|status| status.answering = true);
        pauses.reset();
        let mut answers = JoinSet::new();
        loop {
            select! {
                () = stop.cancelled() => break,
                () = connection.closed() => return Err(BrokerError::Lost),
                question = questions.next() => match question {
                    Some(question) => self.spawn_answer(&connection, &mut answers, question).await?,
                    None => return Err(BrokerError::Lost),
                },
                Some(_answered) = answers.join_next() => {}
            }
        }
        // Answers end by themselves now, with an error to their clients.
        let ended = async { while answers.join_next().await.is_some() {} };
        connection.with(ended).await?;
        connection.flush().await
    }

    /// Subscribes to all kinds of requests.
    async fn subscribe(
        &self,
        connection: &Connection,
        namespace: &Namespace,
    ) -> Result<SelectAll<impl Stream<Item = (LocalCall, Message)> + use<>>, BrokerError> {
        let mut questions = SelectAll::new();
        for call in LocalCall::ALL {
            let subject = namespace.subject(local_subject(self.service.address(), call));
            let subscribed = connection.with(connection.client().subscribe(subject)).await?;
            let subscription =
                subscribed.map_err(|error| BrokerError::Subscribe(error.to_string()))?;
            questions.push(subscription.map(move |message| (call, message)));
        }
        connection.flush().await?;
        Ok(questions)
    }

    /// Answers a request in a separate task. Sends an error instead if `streams_max` requests are being answered.
    /// Ignores a request without a reply subject.
    async fn spawn_answer(
        &self,
        connection: &Connection,
        answers: &mut JoinSet<()>,
        (call, message): (LocalCall, Message),
    ) -> Result<(), BrokerError> {
        // A request without a reply subject gets no answer.
        let Some(inbox) = message.reply else { return Ok(()) };
        let client = connection.client().clone();
        let mut reply = Reply::new(client, inbox, &self.service);
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            let limit = self.service.config().streams_max;
            let text = format!("{limit} questions are being answered already: ask later");
            // Without a task, because there may be many such requests.
            let status = failed(ErrorCode::ResourceExhausted, text);
            return connection.with(reply.fail(&status)).await?.or(Ok(()));
        };
        let service = Arc::clone(&self.service);
        let headers = message.headers.unwrap_or_default();
        let path = format!("nats/LocalIndexer/{call:?}");
        let span = request_span(&path, |name| Some(headers.get(name)?.as_str()));
        let answering = async move {
            let _place = place;
            if let Err(CutOff(reason)) = answer(&service, &mut reply, call, message.payload).await {
                tracing::info!(?call, reason, "an answer is cut off");
            }
        };
        answers.spawn(answering.instrument(span));
        Ok(())
    }
}

/// Answers one request of the kind `call`. Replies with an error if the request is invalid.
async fn answer(
    service: &LocalIndexerService,
    reply: &mut Reply,
    call: LocalCall,
    question: Bytes,
) -> Result<(), CutOff> {
    let requested = match call {
        LocalCall::Events => events(service, question).await,
        LocalCall::Dump => dump(service, question).await,
        LocalCall::Digests => digests(service, question).await,
        LocalCall::Status => status(service, question).await,
    };
    match requested {
        Ok(parts) => reply.send(parts).await,
        Err(status) => reply.fail(&status).await,
    }
}

type Answer = Result<BoxStream<'static, Result<EncodedPart, Status>>, Status>;

async fn events(service: &LocalIndexerService, question: Bytes) -> Answer {
    let parts = service.get_events(decode_request(question)?).await?.into_inner();
    Ok(parts.map(|part| part.map(|part| EncodedPart::encode(&part))).boxed())
}

async fn dump(service: &LocalIndexerService, question: Bytes) -> Answer {
    let parts = service.dump(decode_request(question)?).await?.into_inner();
    Ok(parts.map(|part| part.map(|part| EncodedPart::encode(&part))).boxed())
}

async fn digests(service: &LocalIndexerService, question: Bytes) -> Answer {
    let parts = service.get_digests(decode_request(question)?).await?.into_inner();
    Ok(parts.map(|part| part.map(|part| EncodedPart::encode(&part))).boxed())
}

async fn status(service: &LocalIndexerService, question: Bytes) -> Answer {
    let status = service.get_status(decode_request(question)?).await?.into_inner();
    Ok(stream::iter([Ok(EncodedPart::encode(&status))]).boxed())
}

/// Decodes the message of a request. Fails if the message exceeds [`QUESTION_BYTES_MAX`] or is invalid.
fn decode_request<T: prost::Message + prost::Name + Default>(
    question: Bytes,
) -> Result<Request<T>, Status> {
    let bytes = question.len();
    let limit = QUESTION_BYTES_MAX;
    if bytes > limit {
        let text = format_args!("the question has {bytes} bytes, the limit is {limit}");
        return Err(failed(ErrorCode::InvalidArgument, text));
    }
    // NATS authenticates its own users.
    decode(question).map(let_in)
}
