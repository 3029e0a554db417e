use super::limits::PAYLOAD_EVENTS_MAX;

/// A payload that cannot be read as a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A value claims more bytes or members than the payload has left.
    #[error("the payload of {payload_bytes} bytes ends inside a value")]
    Truncated {
        /// Bytes of the payload.
        payload_bytes: usize,
    },
    /// The byte 0xc1, which msgpack never uses.
    #[error("byte {offset} of the payload is no msgpack")]
    Reserved {
        /// Offset of the byte in the payload.
        offset: usize,
    },
    /// Neither an array of two members or more nor a map.
    #[error("the payload is neither an array [time stamp, events, rank] nor a map of these")]
    Envelope,
    /// The first member is not a number.
    #[error("the time stamp is not a number")]
    TimeStamp,
    /// The second member is not an array.
    #[error("the events are not an array")]
    Events,
    /// More than [`PAYLOAD_EVENTS_MAX`] events.
    #[error("{events} events, the limit is {PAYLOAD_EVENTS_MAX}")]
    TooManyEvents {
        /// Events claimed.
        events: usize,
    },
    /// The third member, the rank, must be nil or an unsigned 32-bit number, and is another value. Without a rank, the
    /// blocks cannot be assigned to one.
    #[error("the rank is neither nil nor an unsigned 32-bit number")]
    Rank,
    /// Bytes follow the batch.
    #[error("{bytes} bytes follow the batch")]
    TrailingBytes {
        /// Number of extra bytes.
        bytes: usize,
    },
}
