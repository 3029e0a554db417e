//! Low-level msgpack reader: a cursor over borrowed bytes, without allocation or recursion.

use super::error::DecodeError;
use rmp::Marker;

/// One msgpack value. An array or map is only the header; its members follow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Nil,
    Bool,
    Unsigned(u64),
    /// An integer below 0. All others are `Unsigned`, whichever width the engine sent.
    Negative(i64),
    Float(f64),
    Text(&'a [u8]),
    Binary(&'a [u8]),
    /// Number of members, at most the bytes that follow.
    Array(usize),
    /// Number of entries, at most half the bytes that follow.
    Map(usize),
    Extension,
}

impl Value<'_> {
    /// Number of values that follow and belong to this one.
    pub(super) const fn members(self) -> usize {
        match self {
            Self::Array(length) => length,
            Self::Map(length) => length * 2,
            _ => 0,
        }
    }

    /// An integer's 64-bit pattern. One engine sends the same 64 bits signed, another unsigned.
    pub(super) const fn bits(self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(value),
            Self::Negative(value) => Some(value.cast_unsigned()),
            _ => None,
        }
    }
}

/// Position in a payload. Cheap to copy, so that a field can be read again or skipped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    payload_bytes: usize,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload, payload_bytes: payload.len() }
    }

    /// Bytes not yet read.
    pub(super) const fn remaining(&self) -> usize {
        self.rest.len()
    }

    const fn truncated(&self) -> DecodeError {
        DecodeError::Truncated { payload_bytes: self.payload_bytes }
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let Some((head, tail)) = self.rest.split_at_checked(count) else {
            return Err(self.truncated());
        };
        self.rest = tail;
        Ok(head)
    }

    fn take_array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let Some((head, tail)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.truncated());
        };
        self.rest = tail;
        Ok(*head)
    }

    fn length_8(&mut self) -> Result<usize, DecodeError> {
        Ok(usize::from(u8::from_be_bytes(self.take_array()?)))
    }

    fn length_16(&mut self) -> Result<usize, DecodeError> {
        Ok(usize::from(u16::from_be_bytes(self.take_array()?)))
    }

    fn length_32(&mut self) -> Result<usize, DecodeError> {
        let length = u32::from_be_bytes(self.take_array()?);
        // Longer than the address space is longer than the payload.
        usize::try_from(length).or(Err(self.truncated()))
    }

    /// Checks a container's header. Every member takes at least one byte, so a claim beyond the remaining
    /// bytes is a truncation. The check comes before memory is reserved.
    fn container(&self, value: Value<'a>) -> Result<Value<'a>, DecodeError> {
        if value.members() > self.rest.len() { Err(self.truncated()) } else { Ok(value) }
    }

    /// Reads one value.
    ///
    /// # Errors
    /// If the payload ends inside the value, or at msgpack's reserved byte: the bounds of the values after it
    /// are unknown.
    #[inline]
    pub(super) fn value(&mut self) -> Result<Value<'a>, DecodeError> {
        let marker = Marker::from_u8(u8::from_be_bytes(self.take_array()?));
        Ok(match marker {
            Marker::FixPos(value) => Value::Unsigned(value.into()),
            Marker::U8 => Value::Unsigned(u8::from_be_bytes(self.take_array()?).into()),
            Marker::U16 => Value::Unsigned(u16::from_be_bytes(self.take_array()?).into()),
            Marker::U32 => Value::Unsigned(u32::from_be_bytes(self.take_array()?).into()),
            Marker::U64 => Value::Unsigned(u64::from_be_bytes(self.take_array()?)),
            Marker::FixNeg(value) => Value::Negative(value.into()),
            Marker::I8 => integer(i8::from_be_bytes(self.take_array()?).into()),
            Marker::I16 => integer(i16::from_be_bytes(self.take_array()?).into()),
            Marker::I32 => integer(i32::from_be_bytes(self.take_array()?).into()),
            Marker::I64 => integer(i64::from_be_bytes(self.take_array()?)),
            Marker::Null => Value::Nil,
            Marker::True | Marker::False => Value::Bool,
            Marker::F32 => Value::Float(f32::from_be_bytes(self.take_array()?).into()),
            Marker::F64 => Value::Float(f64::from_be_bytes(self.take_array()?)),
            Marker::Reserved => {
                let offset = self.payload_bytes - self.rest.len() - 1;
                return Err(DecodeError::Reserved { offset });
            }
            _ => return self.sized(marker),
        })
    }

    /// Reads `out.len()` integers below 2^32 as little-endian words: the fast path for token lists. Returns
    /// `false` at the first other value.
    ///
    /// Ids of two and four bytes alternate at random, so a branch on the width is mispredicted half the time.
    /// The code computes the width instead. It loads the next marker from the bytes at hand before the
    /// current id's end is known. The dependency from one id to the next is then only two shifts.
    ///
    /// # Errors
    /// As [`Self::value`].
    pub(super) fn unsigned_32_le(&mut self, out: &mut [[u8; 4]]) -> Result<bool, DecodeError> {
        let mut places = out.iter_mut();
        let all = self.rest;
        let mut at = 0;
        let mut marker = all.first().copied().unwrap_or_default();
        while let Some(bytes) = all.get(at..).and_then(<[u8]>::first_chunk::<8>)
            && let Some(place) = places.next()
        {
            let &[_, a, b, c, d, ..] = bytes;
            let word = u64::from_le_bytes(*bytes);
            match marker {
                // One, two or four bytes follow the marker.
                0xcc..=0xce => {
                    let shift = marker & 3;
                    let bits = 8_u32 << shift;
                    *place = (u32::from_be_bytes([a, b, c, d]) >> (32 - bits)).to_le_bytes();
                    [_, marker, ..] = (word >> bits).to_le_bytes();
                    at += 1 + (1_usize << shift);
                }
                0..0x80 => {
                    *place = u32::from(marker).to_le_bytes();
                    marker = a;
                    at += 1;
                }
                _ => {
                    self.rest = all.get(at..).unwrap_or_default();
                    let Some(id) = self.unsigned_32()? else { return Ok(false) };
                    *place = id.to_le_bytes();
                    at = all.len() - self.rest.len();
                    marker = self.rest.first().copied().unwrap_or_default();
                }
            }
        }
        self.rest = all.get(at..).unwrap_or_default();
        for place in places {
            let Some(id) = self.unsigned_32()? else { return Ok(false) };
            *place = id.to_le_bytes();
        }
        Ok(true)
    }

    fn unsigned_32(&mut self) -> Result<Option<u32>, DecodeError> {
        Ok(match self.value()? {
            Value::Unsigned(number) => u32::try_from(number).ok(),
            _ => None,
        })
    }

    /// Reads the rest of a value whose marker contains a length or is followed by one.
    fn sized(&mut self, marker: Marker) -> Result<Value<'a>, DecodeError> {
        let length = match marker {
            Marker::FixStr(length) | Marker::FixArray(length) | Marker::FixMap(length) => {
                length.into()
            }
            Marker::Str8 | Marker::Bin8 | Marker::Ext8 => self.length_8()?,
            Marker::Str16 | Marker::Bin16 | Marker::Ext16 | Marker::Array16 | Marker::Map16 => {
                self.length_16()?
            }
            Marker::FixExt1 => 1,
            Marker::FixExt2 => 2,
            Marker::FixExt4 => 4,
            Marker::FixExt8 => 8,
            Marker::FixExt16 => 16,
            _ => self.length_32()?,
        };
        match marker {
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                Ok(Value::Text(self.bytes(length)?))
            }
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => Ok(Value::Binary(self.bytes(length)?)),
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
                self.container(Value::Array(length))
            }
            Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => self.container(Value::Map(length)),
            _ => {
                // The data follow one byte of type.
                self.bytes(length.saturating_add(1))?;
                Ok(Value::Extension)
            }
        }
    }

    /// Skips one value with all its members. It uses a counter, so deep nesting costs no memory.
    ///
    /// # Errors
    /// As [`Self::value`].
    pub(super) fn skip(&mut self) -> Result<(), DecodeError> {
        self.skip_many(1)
    }

    /// Skips `count` values with all their members.
    ///
    /// # Errors
    /// As [`Self::value`].
    pub(super) fn skip_many(&mut self, count: usize) -> Result<(), DecodeError> {
        let mut pending = count;
        while pending > 0 {
            if pending > self.rest.len() {
                return Err(self.truncated());
            }
            // Both terms are at most the bytes of the payload, which fit in half the address space.
            pending = pending - 1 + self.value()?.members();
        }
        Ok(())
    }
}

const fn integer(value: i64) -> Value<'static> {
    if value < 0 { Value::Negative(value) } else { Value::Unsigned(value.cast_unsigned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// Ids around the limits of all widths, in the shortest form or one wider.
    fn put_id(payload: &mut Vec<u8>, random: &mut ChaCha8Rng) -> u32 {
        let limits = [0, 0x7f, 0x80, 0xff, 0x100, 0xffff, 0x1_0000, u32::MAX];
        let id = match random.random_range(0..3) {
            0 => limits[random.random_range(0..limits.len())],
            1 => random.random_range(0..0x200),
            _ => random.random(),
        };
        if random.random_bool(0.1) {
            payload.push(0xcf);
            payload.extend(u64::from(id).to_be_bytes());
        } else {
            rmp::encode::write_uint(payload, id.into()).expect("a vector takes all bytes");
        }
        id
    }

    #[test]
    fn lists_of_ids_are_read_like_single_values() {
        for seed in 0..2_000 {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let count = random.random_range(0..40);
            let mut payload = Vec::new();
            let ids: Vec<u32> = (0..count).map(|_| put_id(&mut payload, &mut random)).collect();
            let list_bytes = payload.len();
            payload.extend(std::iter::repeat_n(0xc0, random.random_range(0..10)));

            let mut reader = Reader::new(&payload);
            let mut read = vec![[0; 4]; count];
            assert_eq!(reader.unsigned_32_le(&mut read), Ok(true), "seed {seed}");
            assert_eq!(
                read,
                ids.iter().map(|id| id.to_le_bytes()).collect::<Vec<_>>(),
                "seed {seed}"
            );
            assert_eq!(reader.remaining(), payload.len() - list_bytes, "seed {seed}");

            let cut = random.random_range(0..list_bytes.max(1));
            let mut reader = Reader::new(&payload[..cut.min(list_bytes)]);
            let truncated = reader.unsigned_32_le(&mut read);
            assert_eq!(truncated.is_err(), cut < list_bytes, "seed {seed}, cut at {cut}");
        }
    }

    #[test]
    fn a_list_ends_at_what_is_no_id() {
        let no_ids: [&[u8]; 5] = [
            &[0xc0],
            &[0xff],
            &[0xd1, 0x80, 0x00],
            &[0xcf, 0, 0, 0, 1, 0, 0, 0, 0],
            &[0xca, 0, 0, 0, 0],
        ];
        for no_id in no_ids {
            for (before, after) in [(0, 0), (0, 20), (20, 0), (20, 20)] {
                let payload = [&vec![7; before], no_id, &vec![7; after]].concat();
                let mut read = vec![[0; 4]; before + 1 + after];
                let mut reader = Reader::new(&payload);
                assert_eq!(reader.unsigned_32_le(&mut read), Ok(false), "{no_id:x?} at {before}");
            }
        }
    }
}
