//! Checks answers by reading their bytes, without decoding everything.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// Expected answer to one query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// An answer of the index: the request's id, its number of blocks, and all of them at the best worker.
    Depth {
        /// Id of the request.
        id: u64,
        /// Number of blocks.
        blocks: u64,
    },
    /// An answer of the echo: this many bytes, within [`Expected::SLACK`].
    Bytes(usize),
}

impl Expected {
    /// Bytes that framing may add to an echo's answer.
    const SLACK: usize = 8;

    /// Whether `answer` is as expected, from a stream or from a single call.
    pub fn accepts(self, answer: &[u8], in_stream: bool) -> bool {
        match self {
            Self::Bytes(bytes) => answer.len().abs_diff(bytes) <= Self::SLACK,
            Self::Depth { id, blocks } if in_stream => {
                // Fields request_id and matches of FindMatchesStreamResponse.
                let matches = embedded(answer, 2).unwrap_or_default();
                varints(answer).map(|[at, ..]| at) == Some(id)
                    && varints(matches) == Some([id, blocks, blocks])
            }
            Self::Depth { id, blocks } => varints(answer) == Some([id, blocks, blocks]),
        }
    }
}

/// Fields 1 to 3, if they are numbers and come first: request_id, query_blocks and best_overlap_blocks of
/// FindMatchesResponse.
fn varints(mut message: &[u8]) -> Option<[u64; 3]> {
    let mut values = [0; 3];
    while !message.is_empty() {
        let (field, wire_type) = decode_key(&mut message).ok()?;
        if wire_type != WireType::Varint {
            break;
        }
        let value = decode_varint(&mut message).ok()?;
        if let Some(slot) = values.get_mut(usize::try_from(field).ok()?.checked_sub(1)?) {
            *slot = value;
        }
    }
    Some(values)
}

/// The message in field `wanted`.
fn embedded(mut message: &[u8], wanted: u32) -> Option<&[u8]> {
    while !message.is_empty() {
        let (field, wire_type) = decode_key(&mut message).ok()?;
        if field == wanted && wire_type == WireType::LengthDelimited {
            let length = usize::try_from(decode_varint(&mut message).ok()?).ok()?;
            return message.get(..length);
        }
        skip_field(wire_type, field, &mut message, DecodeContext::default()).ok()?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_proto::pb::find_matches_stream_response::Outcome;
    use kvasir_proto::pb::{FindMatchesResponse, FindMatchesStreamResponse, WorkerMatch};
    use prost::Message;

    #[test]
    fn only_the_right_answer_is_accepted() {
        let answer = FindMatchesResponse {
            request_id: 7,
            query_blocks: 300,
            best_overlap_blocks: 300,
            block_size: 16,
            matches: vec![WorkerMatch { worker_id: "w".to_owned(), ..Default::default() }],
            missing_shards: Vec::new(),
            restoring_worker_ids: Vec::new(),
            pools: Vec::new(),
            wants_next_tokens: false,
        };
        let other = FindMatchesResponse { best_overlap_blocks: 299, ..answer.clone() };
        let streamed = |answer: &FindMatchesResponse| {
            let outcome = Some(Outcome::Matches(answer.clone()));
            FindMatchesStreamResponse { request_id: 7, outcome }.encode_to_vec()
        };
        let right = Expected::Depth { id: 7, blocks: 300 };
        assert!(right.accepts(&answer.encode_to_vec(), false));
        assert!(right.accepts(&streamed(&answer), true));
        assert!(!right.accepts(&other.encode_to_vec(), false));
        assert!(!right.accepts(&streamed(&other), true));
        assert!(!Expected::Depth { id: 8, blocks: 300 }.accepts(&streamed(&answer), true));
        assert!(!right.accepts(&[], true));
        assert!(Expected::Bytes(100).accepts(&[0; 99], true));
        assert!(!Expected::Bytes(100).accepts(&[0; 91], true));
    }
}
