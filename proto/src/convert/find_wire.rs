//! Reads queries from bytes and writes answers to bytes without generated messages: the server's hot path. Tests
//! compare both with the generated messages.

use super::ConvertError;
use super::find::{Fields, FindQuery};
use super::find_answer::{FindAnswer, PoolState, WorkerMatch};
use super::shared::{age_ms, state, state_reason};
use crate::pb;
use crate::types::{BlockName, LocalHash, SourceState, Tier};
use prost::DecodeError;
use prost::bytes::Bytes;
use prost::encoding::{
    DecodeContext, WireType, bool, bytes, decode_key, decode_varint, fixed64, int32, message,
    skip_field, string, uint32, uint64,
};
use std::time::Duration;

/// A decoded `FindMatchesRequest`.
#[derive(Debug)]
pub struct FindRequest {
    /// Id of the request, repeated in the answer.
    pub request_id: u64,
    /// The query, or why it is rejected.
    pub query: Result<FindQuery, ConvertError>,
}

impl FindRequest {
    /// Decodes a request without copying the tokens.
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
            fields.merge(message, tag, wire_type, rest)?;
            rest = after;
        }
        Ok(Self { request_id: fields.request_id, query: fields.check() })
    }
}

impl<'a> Fields<'a> {
    /// Reads the field at the beginning of `at`. The caller has checked that the field is complete.
    fn merge(
        &mut self,
        message: &'a Bytes,
        tag: u32,
        wire_type: WireType,
        at: &'a [u8],
    ) -> Result<(), DecodeError> {
        let mut rest = at;
        let context = DecodeContext::default();
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
                    if payload.is_empty() { Bytes::new() } else { message.slice_ref(payload) };
                Ok(())
            }
            12 => numbers(wire_type, &mut self.local_hashes, at, LocalHash),
            13 => numbers(wire_type, &mut self.sequence_hashes, at, BlockName),
            14 => message::merge_repeated(wire_type, &mut self.multimodal, rest, context),
            15 => {
                let payload = payload(wire_type, at)?;
                self.next_tokens_le =
                    if payload.is_empty() { Bytes::new() } else { message.slice_ref(payload) };
                Ok(())
            }
            16 => uint64::merge_repeated(wire_type, &mut self.wide_token_ids, rest, context),
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
            24 => bool::merge(wire_type, &mut self.shared, rest, context),
            25 => bool::merge(wire_type, &mut self.explain, rest, context),
            26 => {
                let tokens = self.prompt_tokens.get_or_insert_default();
                uint32::merge(wire_type, tokens, rest, context)
            }
            _ => Ok(()),
        }
    }
}

/// Content of a length-delimited field.
fn payload(wire_type: WireType, mut at: &[u8]) -> Result<&[u8], DecodeError> {
    if wire_type != WireType::LengthDelimited {
        // Returns the decoder's own error text.
        bytes::merge(wire_type, &mut Bytes::new(), &mut at, DecodeContext::default())?;
    }
    let length = usize::try_from(decode_varint(&mut at)?).unwrap_or(usize::MAX);
    // The caller has checked that the field is complete.
    Ok(at.get(..length).unwrap_or_default())
}

fn text<'a>(wire_type: WireType, value: &mut &'a str, mut at: &'a [u8]) -> Result<(), DecodeError> {
    match str::from_utf8(payload(wire_type, at)?) {
        Ok(text) => {
            *value = text;
            Ok(())
        }
        // Returns the decoder's own error text.
        Err(_) => string::merge(wire_type, &mut String::new(), &mut at, DecodeContext::default()),
    }
}

/// 8-byte numbers, packed or one by one.
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

/// An answer that can be encoded.
pub trait WriteAnswer {
    /// Appends the encoded `FindMatchesResponse` or `FindMatchesStreamResponse` to `out`.
    fn write(&self, out: &mut Vec<u8>);
}

/// The answer to a single request.
#[derive(Debug)]
pub struct FindReply {
    /// Id of the request.
    pub request_id: u64,
    /// The answer.
    pub answer: FindAnswer,
}

/// The answer to one request of a stream.
#[derive(Debug)]
pub struct FindStreamReply {
    /// Id of the request.
    pub request_id: u64,
    /// The answer, or the error in its place.
    pub outcome: Result<FindAnswer, pb::StreamError>,
}

impl WriteAnswer for FindReply {
    fn write(&self, out: &mut Vec<u8>) {
        self.answer.write(self.request_id, out);
    }
}

impl WriteAnswer for FindStreamReply {
    fn write(&self, out: &mut Vec<u8>) {
        number(1, self.request_id, out);
        match &self.outcome {
            Ok(answer) => embed(2, out, |out| answer.write(self.request_id, out)),
            Err(error) => message::encode(3, error, out),
        }
    }
}

// Tags are less than 16, so each key takes one byte, unless a function says otherwise.

/// Writes a number; zero is omitted, as in proto3.
fn number(tag: u8, value: u64, out: &mut Vec<u8>) {
    if value != 0 {
        out.push(tag << 3);
        varint(value, out);
    }
}

/// Writes a number whose tag is 16 or more; zero is omitted.
fn two_byte_number(tag: u64, value: u64, out: &mut Vec<u8>) {
    if value != 0 {
        varint(tag << 3, out);
        varint(value, out);
    }
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        let [low, ..] = value.to_le_bytes();
        out.push(low | 0x80);
        value >>= 7;
    }
    let [low, ..] = value.to_le_bytes();
    out.push(low);
}

fn text_field(tag: u8, text: &[u8], out: &mut Vec<u8>) {
    out.push(tag << 3 | 2);
    varint(text.len() as u64, out);
    out.extend_from_slice(text);
}

/// Writes a nested message. Its length is known only afterwards. Most lengths take one byte; for a longer length, the
/// content is moved.
fn embed(tag: u8, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(tag << 3 | 2);
    let at = out.len();
    out.push(0);
    write(out);
    let mut length = out.len() - at - 1;
    let mut place = at;
    while length >= 0x80 {
        let [low, ..] = length.to_le_bytes();
        out.insert(place, low | 0x80);
        place += 1;
        length >>= 7;
    }
    let [last, ..] = length.to_le_bytes();
    if let Some(byte) = out.get_mut(place) {
        *byte = last;
    }
}

/// `BlocksByTier`.
fn tier_counts(by_tier: [u32; Tier::COUNT], out: &mut Vec<u8>) {
    for (tag, blocks) in (1..).zip(by_tier) {
        number(tag, blocks.into(), out);
    }
}

impl FindAnswer {
    fn write(&self, request_id: u64, out: &mut Vec<u8>) {
        number(1, request_id, out);
        number(2, self.query_blocks.into(), out);
        number(3, self.best_overlap_blocks.into(), out);
        number(4, self.block_size.into(), out);
        for found in &self.matches {
            embed(5, out, |out| found.write(self.block_size, out));
        }
        for worker in &self.restoring {
            text_field(7, worker.as_str().as_bytes(), out);
        }
        for pool in &self.pools {
            embed(8, out, |out| pool.write(out));
        }
        number(9, self.wants_next_tokens.into(), out);
    }
}

impl PoolState {
    fn write(&self, out: &mut Vec<u8>) {
        text_field(1, self.pool.as_str().as_bytes(), out);
        number(2, self.held_blocks.into(), out);
        number(3, state_number(self.state), out);
        number(4, self.connected.into(), out);
        number(5, self.lag_batches, out);
        age(6, self.verified_age, out);
    }
}

fn state_number(value: SourceState) -> u64 {
    u64::try_from(i32::from(state(value))).unwrap_or_default()
}

/// Writes a time that may be absent. An absent time differs from zero here.
fn age(tag: u8, age: Option<Duration>, out: &mut Vec<u8>) {
    if let Some(age) = age {
        out.push(tag << 3);
        varint(age_ms(age), out);
    }
}

impl WorkerMatch {
    fn write(&self, block_size: u32, out: &mut Vec<u8>) {
        text_field(1, self.worker.as_str().as_bytes(), out);
        number(2, self.rank.into(), out);
        number(3, self.blocks.into(), out);
        number(4, u64::from(self.blocks) * u64::from(block_size), out);
        embed(5, out, |out| tier_counts(self.by_tier, out));
        number(6, state_number(self.state), out);
        if let Some(cursor) = self.applied {
            embed(7, out, |out| {
                text_field(1, &cursor.incarnation.0.to_be_bytes(), out);
                number(2, cursor.sequence, out);
            });
        }
        number(8, self.lag_batches, out);
        age(9, self.verified_age, out);
        number(10, self.speculative_blocks.into(), out);
        number(11, self.shed_blocks, out);
        number(12, self.connected.into(), out);
        embed(13, out, |out| tier_counts(self.by_best_tier, out));
        number(14, self.pool_blocks.into(), out);
        number(15, self.may_be_high.into(), out);
        for (seen, age) in &self.reasons {
            message::encode(16, &state_reason(seen, *age), out);
        }
        two_byte_number(17, self.reusable_tokens, out);
        two_byte_number(18, self.main_group_blocks.into(), out);
    }
}

#[cfg(test)]
#[path = "find_wire_test.rs"]
mod tests;
