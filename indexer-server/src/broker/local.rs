use super::Connection;
use crate::ingest::{AskError, LocalIndexers, Parts};
use async_nats::{Message, StatusCode, Subscriber};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use kvasir_proto::{
    broker::{LocalCall, answer, local_subject},
    codec,
    convert::{
        DigestsPart, DigestsQuery, EventsPart, EventsQuery, LocalDumpPart, LocalDumpQuery,
        LocalSource,
    },
    pb,
};
use prost::Message as _;

/// Asks agents at their workers' subjects.
#[derive(Debug, Clone)]
pub struct LocalByBroker(Connection);

impl LocalByBroker {
    /// Asks over a connection.
    #[must_use]
    pub const fn new(connection: Connection) -> Self {
        Self(connection)
    }

    /// The parts of an answer, as they come.
    fn ask(&self, source: &LocalSource, call: LocalCall, question: Vec<u8>) -> Parts<Bytes> {
        let (client, subject) = (self.0.client.clone(), local_subject(&source.address, call));
        let opening = async move {
            let inbox = client.new_inbox();
            let refused = |error: &dyn std::fmt::Display| AskError::Refused(error.to_string());
            let parts = client.subscribe(inbox.clone()).await.map_err(|error| refused(&error))?;
            client
                .publish_with_reply(subject.clone(), inbox, question.into())
                .await
                .map_err(|error| refused(&error))?;
            Ok::<_, AskError>(Answer { client, subject, parts, taken: 0, confirm: None })
        };
        stream::once(opening)
            .and_then(|answer| async {
                Ok(stream::try_unfold(answer, |mut answer| async {
                    let part = answer.next().await?;
                    Ok(part.map(|part| (part, answer)))
                }))
            })
            .try_flatten()
            .boxed()
    }
}

impl LocalIndexers for LocalByBroker {
    fn events(&self, _url: &str, query: EventsQuery, block_size: u32) -> Parts<EventsPart> {
        let source = query.source.clone();
        let question = pb::GetEventsRequest::from(query).encode_to_vec();
        let parts = self.ask(&source, LocalCall::Events, question);
        let read = move |part: Result<Bytes, AskError>| {
            Ok(EventsPart::read(decode::<pb::GetEventsResponse>(part?)?, block_size)?)
        };
        parts.map(read).boxed()
    }

    fn dump(&self, _url: &str, query: LocalDumpQuery) -> Parts<LocalDumpPart> {
        let source = query.source.clone();
        let question = pb::LocalDumpRequest::from(query).encode_to_vec();
        let parts = self.ask(&source, LocalCall::Dump, question);
        let read = |part: Result<Bytes, AskError>| {
            Ok(LocalDumpPart::try_from(decode::<pb::LocalDumpResponse>(part?)?)?)
        };
        parts.map(read).boxed()
    }

    fn digests(&self, _url: &str, query: DigestsQuery) -> Parts<DigestsPart> {
        let source = query.source.clone();
        let question = pb::GetDigestsRequest::from(query).encode_to_vec();
        let parts = self.ask(&source, LocalCall::Digests, question);
        let read = |part: Result<Bytes, AskError>| {
            Ok(DigestsPart::try_from(decode::<pb::GetDigestsResponse>(part?)?)?)
        };
        parts.map(read).boxed()
    }
}

fn decode<M: prost::Message + prost::Name + Default>(part: Bytes) -> Result<M, AskError> {
    codec::decode(part).map_err(|status| AskError::Refused(status.message().to_owned()))
}

/// An answer on its way.
struct Answer {
    client: async_nats::Client,
    subject: String,
    parts: Subscriber,
    taken: u64,
    /// Where the last part is to be confirmed, once the next one is wanted.
    confirm: Option<async_nats::Subject>,
}

impl Answer {
    async fn next(&mut self) -> Result<Option<Bytes>, AskError> {
        if let Some(confirm) = self.confirm.take() {
            let sent = self.client.publish(confirm, Bytes::new()).await;
            sent.map_err(|error| AskError::Refused(error.to_string()))?;
        }
        let Some(part) = self.parts.next().await else { return Ok(None) };
        if part.status == Some(StatusCode::NO_RESPONDERS) {
            return Err(AskError::Refused(format!("nobody answers at {}", self.subject)));
        }
        let header = |name: &str| {
            let headers = part.headers.as_ref()?;
            headers.get(name).map(|value| value.as_str().to_owned())
        };
        if let Some(code) = header(answer::ERROR_CODE) {
            let text = header(answer::ERROR).unwrap_or_default();
            return Err(AskError::Refused(format!("{text} (code {code})")));
        }
        let number = header(answer::PART).and_then(|number| number.parse().ok());
        if number != Some(self.taken) {
            let expected = self.taken;
            return Err(AskError::Refused(format!("part {number:?} came instead of {expected}")));
        }
        self.taken += 1;
        let Message { payload, reply, .. } = part;
        self.confirm = reply;
        Ok(Some(payload))
    }
}
