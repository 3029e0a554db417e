use super::DeserializeError;

/// Reads little-endian fields from the front of a byte slice. Each error names the field.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Reads the next `N` bytes. Fails with the name of `field` if fewer are left.
    fn take_array<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], DeserializeError> {
        let (head, rest) =
            self.rest.split_first_chunk().ok_or(DeserializeError::Truncated { field })?;
        self.rest = rest;
        Ok(*head)
    }

    pub(super) fn bytes<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], DeserializeError> {
        self.take_array(field)
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, DeserializeError> {
        self.take_array(field).map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, DeserializeError> {
        self.take_array(field).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, DeserializeError> {
        self.take_array(field).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, DeserializeError> {
        self.take_array(field).map(u64::from_le_bytes)
    }

    /// Number of bytes not read yet.
    pub(super) const fn bytes_left(&self) -> usize {
        self.rest.len()
    }
}
