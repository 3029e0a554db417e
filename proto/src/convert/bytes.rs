//! Checked values to and from the bytes of their messages, for what travels by another way than gRPC:
//! over a broker, or on disk.

use super::{
    BrokerMessage, ConvertError, DigestsPart, DigestsQuery, EventsPart, EventsQuery, LocalDumpPart,
    LocalDumpQuery, Registration,
};
use crate::{codec, pb};
use prost::{Message, Name, bytes::Bytes};

/// Why bytes are not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BytesError {
    /// They are not protobuf, or exceed the bounds of the message.
    #[error("{0}")]
    Unreadable(String),
    /// The message breaks the contract.
    #[error(transparent)]
    Invalid(#[from] ConvertError),
}

/// Reads a message within the bounds that it has over gRPC.
fn decode<M: Message + Name + Default>(bytes: Bytes) -> Result<M, BytesError> {
    codec::decode(bytes).map_err(|status| BytesError::Unreadable(status.message().to_owned()))
}

impl BrokerMessage {
    /// Reads a message of a source.
    ///
    /// # Errors
    /// If it exceeds its bounds, is not protobuf or breaks the contract.
    pub fn decode(bytes: Bytes) -> Result<Self, BytesError> {
        Ok(decode::<pb::BrokerMessage>(bytes)?.try_into()?)
    }
}

impl EventsQuery {
    /// The bytes of a `GetEventsRequest`.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        pb::GetEventsRequest::from(self).encode_to_vec()
    }
}

impl EventsPart {
    /// Reads a `GetEventsResponse` of a worker with `block_size` tokens a block.
    ///
    /// # Errors
    /// If it exceeds its bounds, is not protobuf or breaks the contract.
    pub fn decode(bytes: Bytes, block_size: u32) -> Result<Self, BytesError> {
        Ok(Self::read(decode(bytes)?, block_size)?)
    }
}

impl LocalDumpQuery {
    /// The bytes of a `LocalDumpRequest`.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        pb::LocalDumpRequest::from(self).encode_to_vec()
    }
}

impl LocalDumpPart {
    /// Reads a `LocalDumpResponse`.
    ///
    /// # Errors
    /// If it exceeds its bounds, is not protobuf or breaks the contract.
    pub fn decode(bytes: Bytes) -> Result<Self, BytesError> {
        Ok(decode::<pb::LocalDumpResponse>(bytes)?.try_into()?)
    }
}

impl DigestsQuery {
    /// The bytes of a `GetDigestsRequest`.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        pb::GetDigestsRequest::from(self).encode_to_vec()
    }
}

impl DigestsPart {
    /// Reads a `GetDigestsResponse`.
    ///
    /// # Errors
    /// If it exceeds its bounds, is not protobuf or breaks the contract.
    pub fn decode(bytes: Bytes) -> Result<Self, BytesError> {
        Ok(decode::<pb::GetDigestsResponse>(bytes)?.try_into()?)
    }
}

impl Registration {
    /// The bytes of the `RegisterWorkerRequest` that asks for it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        pb::RegisterWorkerRequest::from(self).encode_to_vec()
    }

    /// About the bytes that it takes in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        const ENTRY_BYTES: usize = 64;
        let entries = self.endpoints.len()
            + self.lora_names.len()
            + self.medium_ttls.len()
            + self.connector_chunks.len()
            + self.pools.len()
            + self.profile.labels.len();
        pb::RegisterWorkerRequest::from(self).encoded_len() + entries * ENTRY_BYTES
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// If it is not protobuf or breaks the contract.
    pub fn decode(bytes: &[u8]) -> Result<Self, BytesError> {
        let request = pb::RegisterWorkerRequest::decode(bytes);
        let request = request.map_err(|error| BytesError::Unreadable(error.to_string()))?;
        Ok(request.try_into()?)
    }
}
