//! Sends an answer in parts, with backpressure by confirmations.

use crate::service::{LocalIndexerService, failed};
use async_nats::client::PublishErrorKind;
use async_nats::{Client, HeaderMap, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures::{FutureExt, Stream, StreamExt};
use kvasir_proto::broker::answer::{ERROR, ERROR_CODE, PART};
use kvasir_proto::code::ErrorCode;
use kvasir_proto::limits::ANSWER_PARTS_AHEAD_MAX;
use kvasir_proto::pb::{
    GetDigestsResponse, GetEventsResponse, GetLocalStatusResponse, LocalDumpResponse,
    get_digests_response, get_events_response, local_dump_response,
};
use prost::Message;
use std::time::Duration;
use tokio::select;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// Why an answer ends early.
pub(super) struct CutOff(pub(super) &'static str);

/// A part of an answer.
pub(super) trait Part: Message {
    /// Whether this is the last part.
    fn ends(&self) -> bool;
}

impl Part for GetEventsResponse {
    fn ends(&self) -> bool {
        !matches!(self.part, Some(get_events_response::Part::Batch(_)))
    }
}

impl Part for LocalDumpResponse {
    fn ends(&self) -> bool {
        !matches!(self.part, Some(local_dump_response::Part::Chunk(_)))
    }
}

impl Part for GetDigestsResponse {
    fn ends(&self) -> bool {
        !matches!(self.part, Some(get_digests_response::Part::Digest(_)))
    }
}

impl Part for GetLocalStatusResponse {
    fn ends(&self) -> bool {
        true
    }
}

/// An encoded part.
pub(super) struct EncodedPart {
    ends: bool,
    bytes: Bytes,
}

impl EncodedPart {
    pub(super) fn encode(part: &impl Part) -> Self {
        Self { ends: part.ends(), bytes: part.encode_to_vec().into() }
    }
}

/// An answer in progress.
pub(super) struct Reply {
    client: Client,
    /// Subject of the answer.
    inbox: Subject,
    stall_timeout: Duration,
    stop: CancellationToken,
    /// Number of parts sent.
    sent: u64,
    /// Number of parts sent, but not confirmed.
    ahead: usize,
}

impl Reply {
    pub(super) fn new(client: Client, inbox: Subject, service: &LocalIndexerService) -> Self {
        let stall_timeout = service.config().stall_timeout;
        let stop = service.stop().clone();
        Self { client, inbox, stall_timeout, stop, sent: 0, ahead: 0 }
    }

    /// Sends the parts of an answer up to the last one. Sends an error and fails if the reader confirms too slowly, the
    /// agent stops, or the last part is missing.
    pub(super) async fn send(
        &mut self,
        mut parts: impl Stream<Item = Result<EncodedPart, Status>> + Unpin,
    ) -> Result<(), CutOff> {
        let confirm: Subject = self.client.new_inbox().into();
        let subscribed = self.client.subscribe(confirm.clone()).await;
        let mut confirmed = subscribed.map_err(|_lost| CutOff("the connection is lost"))?;
        loop {
            if let Err(cut_off) = self.room(&mut confirmed).await {
                let stops = self.stop.is_cancelled();
                let code = if stops { ErrorCode::Unavailable } else { ErrorCode::Aborted };
                self.fail(&failed(code, cut_off.0)).await?;
                return Err(cut_off);
            }
            match parts.next().await {
                Some(Ok(part)) => {
                    if !self.send_part(part.bytes, &confirm).await? || part.ends {
                        return Ok(());
                    }
                }
                Some(Err(status)) => return self.fail(&status).await,
                None => {
                    let stopped = failed(ErrorCode::Unavailable, "the agent stops");
                    return self.fail(&stopped).await;
                }
            }
        }
    }

    /// Waits until another part may be sent: at most [`ANSWER_PARTS_AHEAD_MAX`] parts are unconfirmed. Fails if the
    /// reader is gone or confirms nothing within the timeout.
    async fn room(&mut self, confirmed: &mut Subscriber) -> Result<(), CutOff> {
        loop {
            let confirmation = if self.ahead < ANSWER_PARTS_AHEAD_MAX {
                // Reads the confirmations that have arrived by now.
                let Some(confirmation) = confirmed.next().now_or_never() else { return Ok(()) };
                confirmation
            } else {
                select! {
                    () = self.stop.cancelled() => return Err(CutOff("the agent stops")),
                    confirmation = timeout(self.stall_timeout, confirmed.next()) => {
                        confirmation.map_err(|_late| CutOff("no part was confirmed for too long"))?
                    }
                }
            };
            let confirmation = confirmation.ok_or(CutOff("the connection is lost"))?;
            if confirmation.status == Some(StatusCode::NO_RESPONDERS) {
                return Err(CutOff("there is no reader"));
            }
            self.ahead = self.ahead.saturating_sub(1);
        }
    }

    /// Sends a part, and returns true. If the part exceeds the server's size limit, sends an error in its place and
    /// returns false.
    async fn send_part(&mut self, bytes: Bytes, confirm: &Subject) -> Result<bool, CutOff> {
        let inbox = self.inbox.clone();
        let size = bytes.len();
        let mut headers = HeaderMap::new();
        headers.insert(PART, self.sent.to_string());
        let sent = self
            .client
            .publish_with_reply_and_headers(inbox, confirm.clone(), headers, bytes)
            .await;
        let Err(error) = sent else {
            (self.sent, self.ahead) = (self.sent + 1, self.ahead + 1);
            return Ok(true);
        };
        let PublishErrorKind::MaxPayloadExceeded = error.kind() else {
            return Err(CutOff("the connection is lost"));
        };
        let limit = self.client.max_payload();
        let text = format!(
            "a part of {size} bytes exceeds the broker's limit ({limit}): raise max_payload"
        );
        self.fail(&failed(ErrorCode::ResourceExhausted, text)).await?;
        Ok(false)
    }

    /// Ends the answer with an error.
    pub(super) async fn fail(&mut self, status: &Status) -> Result<(), CutOff> {
        let mut headers = HeaderMap::new();
        headers.insert(ERROR_CODE, i32::from(status.code()).to_string());
        // A header has one line.
        let text: String =
            status.message().chars().map(|at| if at.is_control() { ' ' } else { at }).collect();
        headers.insert(ERROR, text);
        let sent = self.client.publish_with_headers(self.inbox.clone(), headers, Bytes::new());
        sent.await.map_err(|_lost| CutOff("the connection is lost"))
    }
}
