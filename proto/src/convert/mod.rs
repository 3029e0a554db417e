//! Conversions between messages and value types, one file per message family. A conversion rejects an invalid message
//! with the field and the fix, and never panics. It enforces every limit of [`crate::limits`] on requests.

mod blocks;
mod broker;
mod bytes;
mod chunk;
mod digest;
mod dump;
mod error;
mod facts;
mod fetch;
mod find;
mod find_answer;
mod find_wire;
mod ingest;
mod list;
mod load;
mod local;
mod meaning;
mod placement;
mod pool;
mod profile;
mod reuse;
mod select;
mod shard;
mod shared;
mod storage;
mod worker;

pub use blocks::{
    BlockCommit, BlockKey, BlockWrite, Commits, LoadQuestion, NamedPin, NewSession, Onboarding,
    PinBlocks, PrefixQuery, SequenceList, SessionId, SlotLease, SlotList, UnpinBlocks,
};
pub use broker::{BrokerMessage, SourceMessage};
pub use bytes::BytesError;
pub use chunk::read_connector_chunks;
pub use digest::{DigestsPart, DigestsQuery};
pub use dump::{
    DumpQuery, DumpedSource, ListedSource, ListedWorker, WorkerDumpPart, dumped_source,
};
pub use error::{ConvertError, Problem};
pub use fetch::PeerFetch;
pub use find::{FindQuery, QueryInput, QueryTokens, TooManyBlocks};
pub use find_answer::{FindAnswer, PoolState, WorkerMatch};
pub use find_wire::{FindReply, FindRequest, FindStreamReply, WriteAnswer};
pub use ingest::{Heartbeat, Hello, Publication, PublishedBatch, publish_batch};
pub use list::{ListQuery, page_token};
pub use load::{LoadsQuery, WorkerLoad, check_metrics};
pub use local::{
    EventsPart, EventsQuery, LocalDumpEnd, LocalDumpPart, LocalDumpQuery, LocalSource,
    LocalSourceStatus, LocalStatus, RankBuckets,
};
pub use meaning::{
    KnownName, decode_learned, decode_meaning, encode_learned, encode_meaning, name_meaning,
};
pub use placement::Placement;
pub use pool::read_pool_ids;
pub use profile::{ImageTokens, ModelType, ModelTypes, Role, WorkerProfile};
pub use reuse::ReuseReport;
pub use select::take_prompt;
pub use shard::{Owner, owner, shard_info, write_owner};
pub use shared::{age_ms, cursor, incarnation, read_cursor, state, state_reason};
pub use storage::{
    StorageBatch, StorageBlock, StorageChange, StorageContent, StorageImagePart, check_location,
};
pub use worker::{
    EndpointSpec, LOCAL_INDEXER_BY_BROKER, Registration, WorkerAddress, read_medium_ttls,
};
