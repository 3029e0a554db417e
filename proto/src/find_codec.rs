//! The codec of a server that answers prompts: requests are measured as all are, then read and
//! answers written without messages in between.

use crate::{
    codec::{malformed, measure},
    convert::{FindRequest, WriteAnswer},
};
use prost::bytes::Buf;
use std::{fmt, marker::PhantomData};
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

/// Reads [`FindRequest`]s and writes answers of one kind.
pub struct FindCodec<A>(PhantomData<A>);

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

impl<A: WriteAnswer + Send + 'static> Codec for FindCodec<A> {
    type Encode = A;
    type Decode = FindRequest;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<A: WriteAnswer> Encoder for FindCodec<A> {
    type Item = A;
    type Error = Status;

    fn encode(&mut self, answer: A, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.reserve(answer.encoded_len());
        answer.write(out);
        Ok(())
    }
}

impl<A> Decoder for FindCodec<A> {
    type Item = FindRequest;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<FindRequest>, Status> {
        let message = source.copy_to_bytes(source.remaining());
        measure("FindMatchesRequest", &message)?;
        FindRequest::read(&message).map(Some).map_err(malformed)
    }
}
