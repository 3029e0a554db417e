/// Why a key, a value or an image is not one of this format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// It ends too early.
    #[error("{what} ends too early")]
    Short {
        /// What was read.
        what: &'static str,
    },
    /// Something is behind it.
    #[error("{what} has {bytes} bytes more than it should")]
    Long {
        /// What was read.
        what: &'static str,
        /// Bytes left over.
        bytes: usize,
    },
    /// A field is out of its range.
    #[error("{what}: {field} is out of range")]
    Range {
        /// What was read or written.
        what: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A message cannot be read.
    #[error("{what}: {reason}")]
    Message {
        /// What was read.
        what: &'static str,
        /// Why.
        reason: String,
    },
}

/// Reads one key or value from its front.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) const fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, rest: bytes }
    }

    pub(super) fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], FormatError> {
        let (head, rest) =
            self.rest.split_first_chunk().ok_or(FormatError::Short { what: self.what })?;
        self.rest = rest;
        Ok(*head)
    }

    pub(super) fn byte(&mut self) -> Result<u8, FormatError> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, FormatError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, FormatError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Refuses what is left over.
    pub(super) const fn end(self) -> Result<(), FormatError> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(FormatError::Long { what: self.what, bytes }),
        }
    }

    pub(super) const fn range(&self, field: &'static str) -> FormatError {
        FormatError::Range { what: self.what, field }
    }
}
