//! Prompts read from their bytes, and answers written as theirs, without messages in between: these
//! two are what a server does all day. The generated messages say the same, and tests compare.

use super::{
    ConvertError,
    find::{Fields, FindAnswer, FindQuery, WorkerMatch},
    shared::{age_ms, state},
};
use crate::{
    pb,
    types::{BlockName, Cursor, LocalHash},
};
use prost::{
    DecodeError,
    bytes::{BufMut, Bytes},
    encoding::{
        DecodeContext, WireType, bytes, decode_key, decode_varint, encode_key, encode_varint,
        encoded_len_varint, fixed64, int32, message, skip_field, string, uint32, uint64,
    },
};

/// A `FindMatchesRequest` as a server takes it.
#[derive(Debug)]
pub struct FindRequest {
    /// Repeated in the answer.
    pub request_id: u64,
    /// The query, or why it is refused.
    pub query: Result<FindQuery, ConvertError>,
}

impl FindRequest {
    /// Reads a request; the tokens are not copied.
    ///
    /// # Errors
    /// If `message` is not protobuf.
    pub fn read(message: &Bytes) -> Result<Self, DecodeError> {
        let mut fields = Fields::default();
        let mut rest: &[u8] = message;
        while !rest.is_empty() {
            let (tag, wire_type) = decode_key(&mut rest)?;
            let mut after = rest;
            skip_field(wire_type, tag, &mut after, DecodeContext::default())?;
            fields.merge(message, (tag, wire_type), rest)?;
            rest = after;
        }
        Ok(Self { request_id: fields.request_id, query: fields.check() })
    }
}

impl<'a> Fields<'a> {
    /// Takes the field that `at` begins with; it was seen to be whole.
    fn merge(
        &mut self,
        whole: &'a Bytes,
        (tag, wire_type): (u32, WireType),
        at: &'a [u8],
    ) -> Result<(), DecodeError> {
        let (mut rest, context) = (at, DecodeContext::default());
        let rest = &mut rest;
        match tag {
            1 => uint64::merge(wire_type, &mut self.request_id, rest, context),
            2 => text(wire_type, &mut self.model, at),
            3 => text(wire_type, &mut self.tenant, at),
            4 => text(wire_type, &mut self.lora_name, at),
            5 => text(wire_type, &mut self.cache_salt, at),
            6 => uint32::merge(wire_type, self.block_size.get_or_insert_default(), rest, context),
            7 => text(wire_type, self.hash_scheme.get_or_insert_default(), at),
            10 => uint32::merge_repeated(wire_type, &mut self.token_ids, rest, context),
            11 => {
                let payload = payload(wire_type, at)?;
                self.token_ids_le =
                    if payload.is_empty() { Bytes::new() } else { whole.slice_ref(payload) };
                Ok(())
            }
            12 => numbers(wire_type, &mut self.local_hashes, at, LocalHash),
            13 => numbers(wire_type, &mut self.sequence_hashes, at, BlockName),
            14 => message::merge_repeated(wire_type, &mut self.multimodal, rest, context),
            20 => int32::merge_repeated(wire_type, &mut self.tiers, rest, context),
            21 => {
                let mut id = "";
                text(wire_type, &mut id, at)?;
                self.worker_ids.push(id);
                Ok(())
            }
            22 => {
                let minimum = self.minimum_overlap_blocks.get_or_insert_default();
                uint32::merge(wire_type, minimum, rest, context)
            }
            23 => uint32::merge(wire_type, &mut self.top_k, rest, context),
            _ => Ok(()),
        }
    }
}

/// Content of a field with a length.
fn payload(wire_type: WireType, mut at: &[u8]) -> Result<&[u8], DecodeError> {
    if wire_type != WireType::LengthDelimited {
        // The decoder's own words for it.
        bytes::merge(wire_type, &mut Bytes::new(), &mut at, DecodeContext::default())?;
    }
    let length = usize::try_from(decode_varint(&mut at)?).unwrap_or(usize::MAX);
    // The field was seen to be whole.
    Ok(at.get(..length).unwrap_or_default())
}

fn text<'a>(wire_type: WireType, value: &mut &'a str, mut at: &'a [u8]) -> Result<(), DecodeError> {
    match str::from_utf8(payload(wire_type, at)?) {
        Ok(text) => {
            *value = text;
            Ok(())
        }
        // The decoder's own words for it.
        Err(_) => string::merge(wire_type, &mut String::new(), &mut at, DecodeContext::default()),
    }
}

/// Numbers of 8 bytes each, packed or one by one.
fn numbers<T>(
    wire_type: WireType,
    values: &mut Vec<T>,
    mut at: &[u8],
    made: fn(u64) -> T,
) -> Result<(), DecodeError> {
    if wire_type == WireType::LengthDelimited {
        let (packed, rest) = payload(wire_type, at)?.as_chunks();
        if rest.is_empty() {
            values.extend(packed.iter().map(|number| made(u64::from_le_bytes(*number))));
            return Ok(());
        }
    }
    let mut numbers = Vec::new();
    fixed64::merge_repeated(wire_type, &mut numbers, &mut at, DecodeContext::default())?;
    values.extend(numbers.into_iter().map(made));
    Ok(())
}

/// An answer that can be written.
pub trait WriteAnswer {
    /// Bytes that it takes.
    fn encoded_len(&self) -> usize;
    /// Writes it: a `FindMatchesResponse`, or a `FindMatchesStreamResponse`.
    fn write(&self, out: &mut impl BufMut);
}

/// The answer to a single request.
#[derive(Debug)]
pub struct FindReply {
    /// Of the request.
    pub request_id: u64,
    /// The answer.
    pub answer: FindAnswer,
}

/// The answer to one request of a stream.
#[derive(Debug)]
pub struct FindStreamReply {
    /// Of the request.
    pub request_id: u64,
    /// The answer, or why there is none.
    pub outcome: Result<FindAnswer, pb::StreamError>,
}

impl WriteAnswer for FindReply {
    fn encoded_len(&self) -> usize {
        self.answer.encoded_len(self.request_id)
    }

    fn write(&self, out: &mut impl BufMut) {
        self.answer.write(self.request_id, out);
    }
}

impl WriteAnswer for FindStreamReply {
    fn encoded_len(&self) -> usize {
        let outcome = match &self.outcome {
            Ok(answer) => embedded_len(answer.encoded_len(self.request_id)),
            Err(error) => message::encoded_len(3, error),
        };
        number_len(self.request_id) + outcome
    }

    fn write(&self, out: &mut impl BufMut) {
        number(1, self.request_id, out);
        match &self.outcome {
            Ok(answer) => {
                embed(2, answer.encoded_len(self.request_id), out);
                answer.write(self.request_id, out);
            }
            Err(error) => message::encode(3, error, out),
        }
    }
}

// All fields below have one-byte keys and, as in proto3, are left out where they are zero.

fn number(tag: u32, value: u64, out: &mut impl BufMut) {
    if value != 0 {
        encode_key(tag, WireType::Varint, out);
        encode_varint(value, out);
    }
}

const fn number_len(value: u64) -> usize {
    if value == 0 { 0 } else { 1 + encoded_len_varint(value) }
}

/// Key and length of a message within the message.
fn embed(tag: u32, length: usize, out: &mut impl BufMut) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(length as u64, out);
}

const fn embedded_len(length: usize) -> usize {
    1 + encoded_len_varint(length as u64) + length
}

impl FindAnswer {
    const fn numbers(&self, request_id: u64) -> [u64; 4] {
        let Self { query_blocks, best_overlap_blocks, block_size, .. } = *self;
        [request_id, query_blocks as u64, best_overlap_blocks as u64, block_size as u64]
    }

    fn encoded_len(&self, request_id: u64) -> usize {
        let numbers: usize = self.numbers(request_id).into_iter().map(number_len).sum();
        let matches = self.matches.iter().map(|found| embedded_len(found.encoded_len(self)));
        numbers + matches.sum::<usize>()
    }

    fn write(&self, request_id: u64, out: &mut impl BufMut) {
        for (tag, value) in (1..).zip(self.numbers(request_id)) {
            number(tag, value, out);
        }
        for found in &self.matches {
            embed(5, found.encoded_len(self), out);
            found.write(self, out);
        }
    }
}

impl WorkerMatch {
    fn numbers(&self, answer: &FindAnswer) -> [u64; 3] {
        let blocks = u64::from(self.blocks);
        [self.rank.into(), blocks, blocks * u64::from(answer.block_size)]
    }

    fn tiers_len(&self) -> usize {
        self.by_tier.iter().map(|blocks| number_len(u64::from(*blocks))).sum()
    }

    fn encoded_len(&self, answer: &FindAnswer) -> usize {
        let age = self.verified_age.map_or(0, |age| 1 + encoded_len_varint(age_ms(age)));
        let numbers = self.numbers(answer).into_iter().map(number_len).sum::<usize>();
        embedded_len(self.worker.as_str().len())
            + numbers
            + embedded_len(self.tiers_len())
            + number_len(state_number(self))
            + self.applied.map_or(0, |cursor| embedded_len(cursor_len(cursor)))
            + number_len(self.lag_batches)
            + age
    }

    fn write(&self, answer: &FindAnswer, out: &mut impl BufMut) {
        embed(1, self.worker.as_str().len(), out);
        out.put_slice(self.worker.as_str().as_bytes());
        for (tag, value) in (2..).zip(self.numbers(answer)) {
            number(tag, value, out);
        }
        embed(5, self.tiers_len(), out);
        for (tag, blocks) in (1..).zip(self.by_tier) {
            number(tag, blocks.into(), out);
        }
        number(6, state_number(self), out);
        if let Some(cursor) = self.applied {
            embed(7, cursor_len(cursor), out);
            let incarnation = cursor.incarnation.0.to_be_bytes();
            embed(1, incarnation.len(), out);
            out.put_slice(&incarnation);
            number(2, cursor.sequence, out);
        }
        number(8, self.lag_batches, out);
        if let Some(age) = self.verified_age {
            encode_key(9, WireType::Varint, out);
            encode_varint(age_ms(age), out);
        }
    }
}

fn state_number(found: &WorkerMatch) -> u64 {
    u64::try_from(i32::from(state(found.state))).unwrap_or_default()
}

const fn cursor_len(cursor: Cursor) -> usize {
    embedded_len(size_of::<u128>()) + number_len(cursor.sequence)
}

#[cfg(test)]
#[path = "find_wire_test.rs"]
mod tests;
