/// Why a key, a value or an image does not conform to this format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The bytes end too early.
    #[error("{what} ends too early")]
    Short {
        /// Kind of the value.
        what: &'static str,
    },
    /// Bytes follow the end of the value.
    #[error("{what} has {bytes} bytes more than it should")]
    Long {
        /// Kind of the value.
        what: &'static str,
        /// Number of trailing bytes.
        bytes: usize,
    },
    /// A field is out of range.
    #[error("{what}: {field} is out of range")]
    Range {
        /// Kind of the value.
        what: &'static str,
        /// Name of the field.
        field: &'static str,
    },
    /// A protobuf message is malformed.
    #[error("{what}: {reason}")]
    Message {
        /// Kind of the value.
        what: &'static str,
        /// The decoder's error.
        reason: String,
    },
}

/// Decodes one key or value from its front.
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

    /// Refuses trailing bytes.
    pub(super) const fn check_end(self) -> Result<(), FormatError> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(FormatError::Long { what: self.what, bytes }),
        }
    }

    pub(super) const fn range(&self, field: &'static str) -> FormatError {
        FormatError::Range { what: self.what, field }
    }
}
