//! The codec of the generated services: protobuf that counts the list entries of a request before it decodes the
//! request.
//!
//! An empty list entry takes two bytes on the wire and a hundred times that in memory. Without this check, the largest
//! message could allocate gigabytes before its conversion counts the entries. This codec counts entries on the wire and
//! allocates nothing.

use crate::limits::{
    BATCH_EVENTS_MAX, BLOCK_CHECKS_MAX, BLOCK_SLOTS_MAX, BROKER_MESSAGE_BYTES_MAX,
    DUMP_CHUNK_RECORDS_MAX, FETCH_PEERS_MAX, GRPC_MESSAGE_BYTES_MAX, HEARTBEAT_REASONS_MAX,
    QUERY_MULTIMODAL_ITEMS_MAX, QUERY_WORKER_IDS_MAX, REUSE_REQUESTS_MAX, STORAGE_BATCH_EVENTS_MAX,
    STORAGE_METADATA_ENTRIES_MAX, SYNC_ITEMS_MAX, WORKER_CONNECTOR_CHUNKS_MAX,
    WORKER_ENDPOINTS_MAX, WORKER_LABELS_MAX, WORKER_LORA_NAMES_MAX, WORKER_MEDIUM_TTLS_MAX,
    WORKER_POOLS_MAX, WORKER_RANKS_MAX, WORKER_SOURCES_MAX,
};
use prost::bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message, Name};
use std::fmt;
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Maximum size of a request that is neither a query nor a batch of events.
pub const SMALL_REQUEST_BYTES_MAX: usize = 1 << 20;

/// Factor by which a list may exceed its limit before this codec rejects the message. Up to this factor, the conversion
/// rejects the list: it can name the request of a stream and does not end the stream.
pub const EXCESS_MAX: usize = 4;

/// Protobuf codec that rejects oversized requests before it decodes them.
pub struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> fmt::Debug for BoundedCodec<T, U> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("BoundedCodec")
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Name + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = BoundedCodec<T, U>;
    type Decoder = BoundedCodec<T, U>;

    fn encoder(&mut self) -> Self::Encoder {
        Self::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        Self::default()
    }
}

impl<T: Message, U> Encoder for BoundedCodec<T, U> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, message: T, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message.encode(out).map_err(|error| Status::internal(error.to_string()))
    }
}

impl<T, U: Message + Name + Default> Decoder for BoundedCodec<T, U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // One buffer, without a copy: the message's `bytes` fields share it.
        decode(source.copy_to_bytes(source.remaining())).map(Some)
    }
}

/// Decodes a message received other than by gRPC, within the same bounds.
///
/// # Errors
/// If the message exceeds its bounds or is not protobuf.
pub fn decode<U: Message + Name + Default>(message: Bytes) -> Result<U, Status> {
    check_bounds(U::NAME, &message)?;
    U::decode(message).map_err(malformed)
}

/// The status with which gRPC reports messages that are not protobuf.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn malformed(error: DecodeError) -> Status {
    Status::internal(error.to_string())
}

/// Bounds of one message type on the wire.
struct Bounds {
    message: &'static str,
    bytes_max: usize,
    lists: &'static [List],
}

/// A list of messages or strings in a request, with its maximum length.
struct List {
    /// Name of the list in error texts.
    name: &'static str,
    /// Numbers of the fields on the path to the list.
    path: &'static [u32],
    /// Maximum number of entries.
    limit: usize,
}

const fn small(message: &'static str, lists: &'static [List]) -> Bounds {
    Bounds { message, bytes_max: SMALL_REQUEST_BYTES_MAX, lists }
}

const fn large(message: &'static str, lists: &'static [List]) -> Bounds {
    Bounds { message, bytes_max: GRPC_MESSAGE_BYTES_MAX, lists }
}

const fn list(name: &'static str, path: &'static [u32], limit: usize) -> List {
    List { name, path, limit }
}

/// Bounds of every request of the package.
static REQUESTS: [Bounds; 40] = [
    large(
        "FindMatchesRequest",
        &[
            list("multimodal", &[14], QUERY_MULTIMODAL_ITEMS_MAX),
            list("worker_ids", &[21], QUERY_WORKER_IDS_MAX),
        ],
    ),
    large("RecordPlacementRequest", &[list("multimodal", &[14], QUERY_MULTIMODAL_ITEMS_MAX)]),
    small("ReportReuseRequest", &[list("requests", &[5], REUSE_REQUESTS_MAX)]),
    large(
        "PublishEventsRequest",
        &[
            list("batch.events", &[2, 3], BATCH_EVENTS_MAX),
            list("heartbeat.reasons", &[3, 6], HEARTBEAT_REASONS_MAX),
        ],
    ),
    small(
        "RegisterWorkerRequest",
        &[
            list("endpoints", &[6], WORKER_ENDPOINTS_MAX),
            list("lora_names", &[9], WORKER_LORA_NAMES_MAX),
            list("profile.labels", &[12, 4], WORKER_LABELS_MAX),
            list("medium_ttls", &[15], WORKER_MEDIUM_TTLS_MAX),
            list("pool_ids", &[17], WORKER_POOLS_MAX),
            list("connector_chunks", &[18], WORKER_CONNECTOR_CHUNKS_MAX),
        ],
    ),
    small("RemoveWorkerRequest", &[]),
    small("ListWorkersRequest", &[]),
    small("DumpWorkerRequest", &[]),
    small("CreateCheckpointRequest", &[]),
    small("GetStatsRequest", &[]),
    small("GetEventsRequest", &[]),
    small("LocalDumpRequest", &[list("buckets", &[7], WORKER_RANKS_MAX)]),
    small("GetDigestsRequest", &[]),
    small("GetLocalStatusRequest", &[]),
    small("ReportLoadRequest", &[]),
    small("WatchLoadsRequest", &[]),
    large(
        "SelectWorkerRequest",
        &[
            list("multimodal", &[14], QUERY_MULTIMODAL_ITEMS_MAX),
            list("allowed_worker_ids", &[31], QUERY_WORKER_IDS_MAX),
            list("excluded_worker_ids", &[32], QUERY_WORKER_IDS_MAX),
            list("required_labels", &[34], WORKER_LABELS_MAX),
            list("preferred_labels", &[35], WORKER_LABELS_MAX),
        ],
    ),
    small("MarkPrefillCompletedRequest", &[]),
    small("ReportOutputRequest", &[]),
    small("FreeRequest", &[]),
    small("GetLoadsRequest", &[]),
    small("WatchRouterLoadsRequest", &[]),
    small("GetBusyThresholdsRequest", &[]),
    small("SetBusyThresholdsRequest", &[]),
    small("OpenSessionRequest", &[]),
    small("EndSessionRequest", &[]),
    small("AllocateRequest", &[]),
    large("WriteRequest", &[]),
    small("CommitRequest", &[list("blocks", &[2], BLOCK_CHECKS_MAX)]),
    small("AbortRequest", &[]),
    small("MatchPrefixRequest", &[]),
    small("OnboardRequest", &[]),
    small("FetchRequest", &[list("peers", &[2], FETCH_PEERS_MAX)]),
    small("OffloadRequest", &[]),
    small("ReadRequest", &[]),
    small("VerifyRequest", &[]),
    small("ReleaseRequest", &[]),
    small("PinRequest", &[]),
    small("UnpinRequest", &[list("pins", &[2], BLOCK_SLOTS_MAX)]),
    small("GetBlockStatsRequest", &[]),
];

/// Bounds of messages received over a broker.
static BROKER_MESSAGES: [Bounds; 4] = [
    Bounds {
        message: "BrokerMessage",
        bytes_max: BROKER_MESSAGE_BYTES_MAX,
        lists: &[
            list("worker.endpoints", &[1, 6], WORKER_ENDPOINTS_MAX),
            list("worker.lora_names", &[1, 9], WORKER_LORA_NAMES_MAX),
            list("worker.profile.labels", &[1, 12, 4], WORKER_LABELS_MAX),
            list("worker.medium_ttls", &[1, 15], WORKER_MEDIUM_TTLS_MAX),
            list("worker.connector_chunks", &[1, 18], WORKER_CONNECTOR_CHUNKS_MAX),
            list("batch.events", &[5, 3], BATCH_EVENTS_MAX),
            list("heartbeat.reasons", &[6, 6], HEARTBEAT_REASONS_MAX),
        ],
    },
    small("WorkerLoad", &[]),
    Bounds {
        message: "RouterSync",
        bytes_max: BROKER_MESSAGE_BYTES_MAX,
        lists: &[list("items", &[4], SYNC_ITEMS_MAX)],
    },
    Bounds {
        message: "StorageBatch",
        bytes_max: BROKER_MESSAGE_BYTES_MAX,
        lists: &[
            list("events", &[7], STORAGE_BATCH_EVENTS_MAX),
            list(
                "events.extra_metadata",
                &[7, 6],
                STORAGE_BATCH_EVENTS_MAX * STORAGE_METADATA_ENTRIES_MAX,
            ),
        ],
    },
];

/// Bounds of the answers that indexes and routers read from agents. Clients do not check answers of an index.
static AGENT_ANSWERS: [Bounds; 6] = [
    large("GetEventsResponse", &[list("batch.events", &[1, 3], BATCH_EVENTS_MAX)]),
    large("LocalDumpResponse", &[list("chunk.records", &[1, 2], DUMP_CHUNK_RECORDS_MAX)]),
    small("GetDigestsResponse", &[]),
    small("GetLocalStatusResponse", &[list("sources", &[2], WORKER_SOURCES_MAX)]),
    small("ReportLoadResponse", &[]),
    small("WatchLoadsResponse", &[list("loads", &[1], WORKER_RANKS_MAX)]),
];

/// Rejects a message that exceeds its bounds or is not protobuf.
pub(crate) fn check_bounds(name: &str, message: &[u8]) -> Result<(), Status> {
    let mut bounded = REQUESTS.iter().chain(&BROKER_MESSAGES).chain(&AGENT_ANSWERS);
    let Some(bounds) = bounded.find(|bounds| bounds.message == name) else {
        return Ok(());
    };
    let bytes = message.len();
    let limit = bounds.bytes_max;
    if bytes > limit {
        return Err(refusal(format_args!("{name} has {bytes} bytes, the limit is {limit}")));
    }
    for &List { name, path, limit } in bounds.lists {
        let count = count(message, path).map_err(malformed)?;
        if count > limit.saturating_mul(EXCESS_MAX) {
            let refused =
                format_args!("{name} has {count} entries, the limit is {limit}: send fewer");
            return Err(refusal(refused));
        }
    }
    Ok(())
}

fn refusal(text: fmt::Arguments<'_>) -> Status {
    Status::invalid_argument(text.to_string())
}

/// Counts the entries of the list at `path`, over all occurrences of the enclosing messages, because the decoder merges
/// occurrences. Uses the decoder's own functions, so that both agree on every message.
fn count(mut message: &[u8], path: &[u32]) -> Result<usize, DecodeError> {
    let Some((&field, inner)) = path.split_first() else { return Ok(1) };
    let mut entries = 0;
    while !message.is_empty() {
        let (tag, wire_type) = decode_key(&mut message)?;
        let mut rest = message;
        skip_field(wire_type, tag, &mut rest, DecodeContext::default())?;
        if tag == field && wire_type == WireType::LengthDelimited {
            decode_varint(&mut message)?;
            let length = message.len().saturating_sub(rest.len());
            entries += count(message.get(..length).unwrap_or_default(), inner)?;
        }
        message = rest;
    }
    Ok(entries)
}

#[cfg(test)]
#[path = "codec_test.rs"]
mod tests;
