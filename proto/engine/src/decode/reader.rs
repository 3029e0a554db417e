//! Low-level msgpack: a cursor over borrowed bytes that never allocates and never recurses.

use super::DecodeError;
use rmp::Marker;

/// One msgpack value. Of an array or map it is the header only; the members follow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Nil,
    Bool,
    Unsigned(u64),
    /// Below 0: other integers are `Unsigned`, whatever width they were sent with.
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
    /// Values that follow and belong to this one.
    pub(super) const fn members(self) -> usize {
        match self {
            Self::Array(length) => length,
            Self::Map(length) => length * 2,
            _ => 0,
        }
    }

    /// An integer by its bit pattern: the same 64 bits arrive signed from one path and unsigned
    /// from another.
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

    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let Some((head, tail)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.truncated());
        };
        self.rest = tail;
        Ok(*head)
    }

    fn length_8(&mut self) -> Result<usize, DecodeError> {
        Ok(usize::from(u8::from_be_bytes(self.take()?)))
    }

    fn length_16(&mut self) -> Result<usize, DecodeError> {
        Ok(usize::from(u16::from_be_bytes(self.take()?)))
    }

    fn length_32(&mut self) -> Result<usize, DecodeError> {
        let length = u32::from_be_bytes(self.take()?);
        // Longer than the address space is longer than the payload.
        usize::try_from(length).or(Err(self.truncated()))
    }

    /// A container's header: every member takes a byte at least, so a claim beyond the bytes that
    /// are left is a truncation, found before anything is reserved for it.
    fn container(&self, value: Value<'a>) -> Result<Value<'a>, DecodeError> {
        if value.members() > self.rest.len() { Err(self.truncated()) } else { Ok(value) }
    }

    /// Reads one value.
    ///
    /// # Errors
    /// If the payload ends inside it, or at the one byte that msgpack reserves: nothing after
    /// that can be told apart.
    #[inline]
    pub(super) fn value(&mut self) -> Result<Value<'a>, DecodeError> {
        let marker = Marker::from_u8(u8::from_be_bytes(self.take()?));
        Ok(match marker {
            Marker::FixPos(value) => Value::Unsigned(value.into()),
            Marker::U8 => Value::Unsigned(u8::from_be_bytes(self.take()?).into()),
            Marker::U16 => Value::Unsigned(u16::from_be_bytes(self.take()?).into()),
            Marker::U32 => Value::Unsigned(u32::from_be_bytes(self.take()?).into()),
            Marker::U64 => Value::Unsigned(u64::from_be_bytes(self.take()?)),
            Marker::FixNeg(value) => Value::Negative(value.into()),
            Marker::I8 => integer(i8::from_be_bytes(self.take()?).into()),
            Marker::I16 => integer(i16::from_be_bytes(self.take()?).into()),
            Marker::I32 => integer(i32::from_be_bytes(self.take()?).into()),
            Marker::I64 => integer(i64::from_be_bytes(self.take()?)),
            Marker::Null => Value::Nil,
            Marker::True | Marker::False => Value::Bool,
            Marker::F32 => Value::Float(f32::from_be_bytes(self.take()?).into()),
            Marker::F64 => Value::Float(f64::from_be_bytes(self.take()?)),
            Marker::Reserved => {
                let offset = self.payload_bytes - self.rest.len() - 1;
                return Err(DecodeError::Reserved { offset });
            }
            _ => return self.sized(marker),
        })
    }

    /// Reads an integer below 2^32: [`Self::value`] for what lists of tokens are made of.
    ///
    /// # Errors
    /// As [`Self::value`].
    #[inline]
    pub(super) fn unsigned_32(&mut self) -> Result<Option<u32>, DecodeError> {
        match *self.rest {
            [id @ 0..0x80, ref rest @ ..] => {
                self.rest = rest;
                Ok(Some(id.into()))
            }
            [0xcd, high, low, ref rest @ ..] => {
                self.rest = rest;
                Ok(Some(u16::from_be_bytes([high, low]).into()))
            }
            [0xce, a, b, c, d, ref rest @ ..] => {
                self.rest = rest;
                Ok(Some(u32::from_be_bytes([a, b, c, d])))
            }
            _ => Ok(match self.value()? {
                Value::Unsigned(number) => u32::try_from(number).ok(),
                _ => None,
            }),
        }
    }

    /// Reads the rest of a value whose marker carries or is followed by a length.
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
                // One byte of type, then the data.
                self.bytes(length.saturating_add(1))?;
                Ok(Value::Extension)
            }
        }
    }

    /// Passes over one value with all its members. A counter, not a stack: no depth of nesting
    /// costs memory.
    ///
    /// # Errors
    /// As [`Self::value`].
    pub(super) fn skip(&mut self) -> Result<(), DecodeError> {
        self.skip_many(1)
    }

    /// Passes over `count` values with all their members.
    ///
    /// # Errors
    /// As [`Self::value`].
    pub(super) fn skip_many(&mut self, count: usize) -> Result<(), DecodeError> {
        let mut pending = count;
        while pending > 0 {
            if pending > self.rest.len() {
                return Err(self.truncated());
            }
            // Both terms are at most the bytes of the payload, which fit half the address space.
            pending = pending - 1 + self.value()?.members();
        }
        Ok(())
    }
}

const fn integer(value: i64) -> Value<'static> {
    if value < 0 { Value::Negative(value) } else { Value::Unsigned(value.cast_unsigned()) }
}
