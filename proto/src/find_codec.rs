//! The codec of a server that answers queries by prompt. It checks requests like [`crate::codec`], then reads requests
//! and writes answers without generated messages.

use crate::codec::{check_bounds, malformed};
use crate::convert::{FindRequest, WriteAnswer};
use prost::bytes::{Buf, BufMut};
use std::fmt;
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Initial capacity for an answer: enough for a few matches.
const ANSWER_BYTES: usize = 512;
/// Maximum size of the buffer that a stream keeps for its next answer.
const KEPT_BYTES: usize = 64 << 10;

/// Codec that reads [`FindRequest`]s and writes answers of one type.
pub struct FindCodec<A>(PhantomData<A>);

/// Encoder of answers of one type.
pub struct FindEncoder<A> {
    /// Buffer of the current answer; a stream reuses it for the next answer.
    answer: Vec<u8>,
    of: PhantomData<A>,
}

/// Decoder of [`FindRequest`]s.
#[derive(Debug, Clone, Copy)]
pub struct FindDecoder;

impl<A> Default for FindCodec<A> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<A> fmt::Debug for FindCodec<A> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("FindCodec")
    }
}

impl<A> fmt::Debug for FindEncoder<A> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("FindEncoder")
    }
}

impl<A: WriteAnswer + Send + 'static> Codec for FindCodec<A> {
    type Encode = A;
    type Decode = FindRequest;
    type Encoder = FindEncoder<A>;
    type Decoder = FindDecoder;

    fn encoder(&mut self) -> Self::Encoder {
        FindEncoder { answer: Vec::with_capacity(ANSWER_BYTES), of: PhantomData }
    }

    fn decoder(&mut self) -> Self::Decoder {
        FindDecoder
    }
}

impl<A: WriteAnswer> Encoder for FindEncoder<A> {
    type Item = A;
    type Error = Status;

    fn encode(&mut self, answer: A, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        self.answer.clear();
        answer.write(&mut self.answer);
        out.put_slice(&self.answer);
        if self.answer.capacity() > KEPT_BYTES {
            self.answer = Vec::new();
        }
        Ok(())
    }
}

impl Decoder for FindDecoder {
    type Item = FindRequest;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<FindRequest>, Status> {
        let message = source.copy_to_bytes(source.remaining());
        check_bounds("FindMatchesRequest", &message)?;
        FindRequest::read(&message).map(Some).map_err(malformed)
    }
}
