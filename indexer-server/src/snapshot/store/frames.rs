//! Byte format of an export: a header, keys with their values, the number of keys, and a checksum.
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | [`MAGIC`] |
//! | 4 | [`FORMAT_VERSION`](crate::snapshot::FORMAT_VERSION) |
//! | 1, 4, ... | length of a key, not 0; length of its value; the key; the value: any number of times |
//! | 1 | 0 |
//! | 8 | number of keys |
//! | 8 | XXH3 of all before |
//!
//! Numbers are little-endian.

use crate::snapshot::config::EXPORT_VALUE_BYTES_MAX;
use crate::snapshot::{FORMAT_VERSION, ImportError};
use std::io::{self, Read};
use xxhash_rust::xxh3::Xxh3;

/// First bytes of an export.
const MAGIC: [u8; 8] = *b"kvasir-s";
/// Maximum length of a key. The longest key is the key of a name's meaning.
const KEY_BYTES_MAX: u8 = 32;

/// A key and its value.
pub(super) type Record<'a> = (&'a [u8], &'a [u8]);

/// Encodes an export.
pub(super) struct Frames {
    /// Encoded bytes that the caller has not taken yet.
    bytes: Vec<u8>,
    hash: Xxh3,
    count: u64,
}

impl Frames {
    pub(super) fn new() -> Self {
        let mut frames = Self { bytes: Vec::new(), hash: Xxh3::new(), count: 0 };
        frames.push(&MAGIC);
        frames.push(&FORMAT_VERSION.to_le_bytes());
        frames
    }

    fn push(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes.extend(bytes);
    }

    /// Adds a key and its value to the export. Returns false, and adds nothing, if either is too long.
    #[must_use]
    pub(super) fn record(&mut self, key: &[u8], value: &[u8]) -> bool {
        let key_bytes = u8::try_from(key.len()).ok();
        let key_bytes = key_bytes.filter(|bytes| (1..=KEY_BYTES_MAX).contains(bytes));
        let value_bytes = u32::try_from(value.len()).ok();
        let value_bytes = value_bytes.filter(|bytes| *bytes <= EXPORT_VALUE_BYTES_MAX);
        let Some((key_bytes, value_bytes)) = key_bytes.zip(value_bytes) else { return false };
        self.push(&[key_bytes]);
        self.push(&value_bytes.to_le_bytes());
        self.push(key);
        self.push(value);
        self.count += 1;
        true
    }

    /// Adds the trailer: number of keys and checksum.
    pub(super) fn add_trailer(&mut self) {
        self.push(&[0]);
        self.push(&self.count.to_le_bytes());
        let hash = self.hash.digest();
        self.bytes.extend(hash.to_le_bytes());
    }

    /// Number of bytes that the caller has not taken yet.
    pub(super) const fn waiting(&self) -> usize {
        self.bytes.len()
    }

    /// Takes at most this many bytes.
    pub(super) fn take_bytes(&mut self, bytes_max: usize) -> Vec<u8> {
        let rest = self.bytes.split_off(bytes_max.min(self.bytes.len()));
        std::mem::replace(&mut self.bytes, rest)
    }
}

/// Decodes an export. Its records are unverified until the end was read.
pub(super) struct FrameReader<R> {
    reader: R,
    hash: Xxh3,
    count: u64,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl<R: Read> FrameReader<R> {
    /// Creates a reader of an export, and reads the header.
    ///
    /// # Errors
    /// If the header is malformed or of another version.
    pub(super) fn new(reader: R) -> Result<Self, ImportError> {
        let key = Vec::new();
        let value = Vec::new();
        let mut frames = Self { reader, hash: Xxh3::new(), count: 0, key, value };
        if frames.array()? != MAGIC {
            return Err(damaged("its header is wrong"));
        }
        match u32::from_le_bytes(frames.array()?) {
            FORMAT_VERSION => Ok(frames),
            found => Err(ImportError::Version { found, supported: FORMAT_VERSION }),
        }
    }

    /// Returns the next key and its value. Returns `None` at the end, after verifying the checksum.
    ///
    /// # Errors
    /// If the export cannot be read or is damaged.
    pub(super) fn next(&mut self) -> Result<Option<Record<'_>>, ImportError> {
        let [key_bytes] = self.array()?;
        if key_bytes == 0 {
            return self.check_trailer().map(|()| None);
        }
        let value_bytes = u32::from_le_bytes(self.array()?);
        if key_bytes > KEY_BYTES_MAX || value_bytes > EXPORT_VALUE_BYTES_MAX {
            return Err(damaged(&format!("a key of {key_bytes} bytes, a value of {value_bytes}")));
        }
        fill(&mut self.reader, key_bytes.into(), &mut self.key)?;
        fill(&mut self.reader, value_bytes.into(), &mut self.value)?;
        self.hash.update(&self.key);
        self.hash.update(&self.value);
        self.count += 1;
        Ok(Some((&self.key, &self.value)))
    }

    /// Checks the number of keys and the checksum at the end of an export. Fails if more bytes follow.
    fn check_trailer(&mut self) -> Result<(), ImportError> {
        if u64::from_le_bytes(self.array()?) != self.count {
            return Err(damaged("keys are missing"));
        }
        let hash = self.hash.digest();
        if u64::from_le_bytes(self.array()?) != hash {
            return Err(damaged("its checksum is wrong"));
        }
        self.key.clear();
        match self.reader.by_ref().take(1).read_to_end(&mut self.key)? {
            0 => Ok(()),
            _ => Err(damaged("bytes follow its end")),
        }
    }

    fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], ImportError> {
        let mut bytes = [0; LENGTH];
        self.reader.read_exact(&mut bytes).map_err(read_error)?;
        self.hash.update(&bytes);
        Ok(bytes)
    }
}

/// Replaces the contents of `bytes` by the next `count` bytes. Memory grows only with the bytes that actually arrive.
fn fill(reader: &mut impl Read, count: u64, bytes: &mut Vec<u8>) -> Result<(), ImportError> {
    bytes.clear();
    let read = reader.take(count).read_to_end(bytes)?;
    if u64::try_from(read).is_ok_and(|read| read == count) {
        Ok(())
    } else {
        Err(damaged("it ends too early"))
    }
}

fn read_error(error: io::Error) -> ImportError {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        damaged("it ends too early")
    } else {
        ImportError::Read(error)
    }
}

fn damaged(reason: &str) -> ImportError {
    ImportError::Damaged { reason: reason.to_owned() }
}
