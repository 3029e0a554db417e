use super::Connection;
use crate::ingest::{AskError, LocalIndexers, Parts};
use async_nats::{HeaderMap, Message, StatusCode, Subscriber};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use kvasir_proto::broker::{LocalCall, answer, local_subject};
use kvasir_proto::convert::{
    BytesError, DigestsPart, DigestsQuery, EventsPart, EventsQuery, LocalDumpPart, LocalDumpQuery,
    LocalSource,
};
use kvasir_trace::inject_with;

/// Queries agents at their workers' subjects.
#[derive(Debug, Clone)]
pub struct LocalByBroker(Connection);

impl LocalByBroker {
    /// Queries over this connection.
    #[must_use]
    pub const fn new(connection: Connection) -> Self {
        Self(connection)
    }

    /// Sends a request to the local indexer of an agent. Returns the parts of the answer in order of arrival.
    fn send_request(
        &self,
        source: &LocalSource,
        call: LocalCall,
        question: Vec<u8>,
    ) -> Parts<Bytes> {
        let client = self.0.client.clone();
        let subject = self.0.namespace.subject(local_subject(&source.address, call));
        let opening = async move {
            let inbox = client.new_inbox();
            let refused = |error: &dyn std::fmt::Display| AskError::Refused(error.to_string());
            let parts = client.subscribe(inbox.clone()).await.map_err(|error| refused(&error))?;
            let headers = trace_headers();
            client
                .publish_with_reply_and_headers(subject.clone(), inbox, headers, question.into())
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
        let parts = self.send_request(&source, LocalCall::Events, query.encode());
        parts.map(move |part| EventsPart::decode(part?, block_size).map_err(unread)).boxed()
    }

    fn dump(&self, _url: &str, query: LocalDumpQuery) -> Parts<LocalDumpPart> {
        let source = query.source.clone();
        let parts = self.send_request(&source, LocalCall::Dump, query.encode());
        parts.map(|part| LocalDumpPart::decode(part?).map_err(unread)).boxed()
    }

    fn digests(&self, _url: &str, query: DigestsQuery) -> Parts<DigestsPart> {
        let source = query.source.clone();
        let parts = self.send_request(&source, LocalCall::Digests, query.encode());
        parts.map(|part| DigestsPart::decode(part?).map_err(unread)).boxed()
    }
}

/// Headers that continue the current trace; empty without one.
fn trace_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    inject_with(|name, value| headers.insert(name, value));
    headers
}

fn unread(error: BytesError) -> AskError {
    match error {
        BytesError::Unreadable(why) => AskError::Refused(why),
        BytesError::Invalid(error) => AskError::Malformed(error),
    }
}

/// A partially received answer.
struct Answer {
    client: async_nats::Client,
    subject: String,
    parts: Subscriber,
    taken: u64,
    /// Subject at which the last part is acknowledged, once the next part is requested.
    confirm: Option<async_nats::Subject>,
}

impl Answer {
    /// Confirms the previous part of the answer, then receives the next part. Fails if the agent is absent, refuses, or
    /// skips a part. Returns `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, AskError> {
        if let Some(confirm) = self.confirm.take() {
            let sent = self.client.publish(confirm, Bytes::new()).await;
            sent.map_err(|error| AskError::Refused(error.to_string()))?;
        }
        let Some(part) = self.parts.next().await else { return Ok(None) };
        if part.status == Some(StatusCode::NO_RESPONDERS) {
            return Err(AskError::Refused(format!("no agent answers at {}", self.subject)));
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
            return Err(AskError::Refused(format!(
                "received part {number:?}, expected {expected}"
            )));
        }
        self.taken += 1;
        let Message { payload, reply, .. } = part;
        self.confirm = reply;
        Ok(Some(payload))
    }
}
