//! Encodes and decodes checked values as message bytes, for transports other than gRPC: brokers and disk.

use super::{
    BrokerMessage, ConvertError, DigestsPart, DigestsQuery, EventsPart, EventsQuery, LocalDumpPart,
    LocalDumpQuery, Registration,
};
use crate::{codec, pb};
use prost::bytes::Bytes;
use prost::{Message, Name};

/// Why bytes cannot be decoded to a checked message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BytesError {
    /// The bytes are not protobuf, or exceed the bounds of the message.
    #[error("{0}")]
    Unreadable(String),
    /// The message breaks the contract.
    #[error(transparent)]
    Invalid(#[from] ConvertError),
}

/// Decodes a message within the bounds that apply over gRPC.
fn decode<M: Message + Name + Default>(bytes: Bytes) -> Result<M, BytesError> {
    codec::decode(bytes).map_err(|status| BytesError::Unreadable(status.message().to_owned()))
}

impl BrokerMessage {
    /// Decodes a message of a source.
    ///
    /// # Errors
    /// If the message exceeds its bounds, is not protobuf or breaks the contract.
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
    /// Decodes a `GetEventsResponse` of a worker with `block_size` tokens per block.
    ///
    /// # Errors
    /// If the message exceeds its bounds, is not protobuf or breaks the contract.
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
    /// Decodes a `LocalDumpResponse`.
    ///
    /// # Errors
    /// If the message exceeds its bounds, is not protobuf or breaks the contract.
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
    /// Decodes a `GetDigestsResponse`.
    ///
    /// # Errors
    /// If the message exceeds its bounds, is not protobuf or breaks the contract.
    pub fn decode(bytes: Bytes) -> Result<Self, BytesError> {
        Ok(decode::<pb::GetDigestsResponse>(bytes)?.try_into()?)
    }
}

impl Registration {
    /// The bytes of a `RegisterWorkerRequest` with this registration.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        pb::RegisterWorkerRequest::from(self).encode_to_vec()
    }

    /// Approximate size of the registration in memory, in bytes.
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

    /// Decodes the bytes of [`encode`](Self::encode).
    ///
    /// # Errors
    /// If the bytes are not protobuf or break the contract.
    pub fn decode(bytes: &[u8]) -> Result<Self, BytesError> {
        let request = pb::RegisterWorkerRequest::decode(bytes);
        let request = request.map_err(|error| BytesError::Unreadable(error.to_string()))?;
        Ok(request.try_into()?)
    }
}
