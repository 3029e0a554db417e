//! Reads and writes frames.

use super::error::WireError;
use super::header::{HEADER_BYTES, Header};
use super::messages::Message;
use crate::limits::{HEAD_READ_BYTES, MESSAGE_BYTES_MAX};
use std::io::{self, IoSlice};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Reads frames from a connection. It reads at most 512 bytes ahead, so that a block's bytes go directly into their
/// slot.
#[derive(Debug)]
pub struct FrameReader<R> {
    io: R,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    block_bytes: u64,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Creates a reader for a connection with blocks of this size.
    pub fn new(io: R, block_bytes: u64) -> Self {
        let buffer = vec![0; HEADER_BYTES + MESSAGE_BYTES_MAX + HEAD_READ_BYTES].into_boxed_slice();
        Self { io, buffer, start: 0, end: 0, block_bytes }
    }

    /// Sets the size of the following blocks.
    pub const fn expect_blocks_of(&mut self, bytes: u64) {
        self.block_bytes = bytes;
    }

    /// The underlying connection.
    pub fn io(&mut self) -> &mut R {
        &mut self.io
    }

    /// Whether the last frame was read completely, and no byte of a next one.
    #[must_use]
    pub const fn is_between_frames(&self) -> bool {
        self.start == self.end
    }

    /// Reads the next frame; `None` if the connection ends before it. Cancel-safe: dropping the future loses nothing.
    ///
    /// # Errors
    /// [`WireError`] if the bytes are not a valid frame, or the connection fails within it.
    pub async fn frame(&mut self) -> Result<Option<Message>, WireError> {
        if !self.fill(HEADER_BYTES).await? {
            return Ok(None);
        }
        let head = self.read_ahead().first_chunk::<HEADER_BYTES>().ok_or(WireError::Closed)?;
        let header = Header::decode(head, self.block_bytes)?;
        let bytes = HEADER_BYTES + header.message_bytes;
        self.fill(bytes).await?;
        let message = self.read_ahead().get(HEADER_BYTES..bytes).unwrap_or_default();
        let message = Message::decode(header.kind, message)?;
        self.start += bytes;
        Ok(Some(message))
    }

    /// Reads some bytes of the payload behind the last message, at least one.
    ///
    /// # Errors
    /// If the connection ends or fails.
    pub async fn payload(&mut self, into: &mut [u8]) -> Result<usize, WireError> {
        let ahead = self.read_ahead();
        if !ahead.is_empty() {
            let count = ahead.len().min(into.len());
            into.iter_mut().zip(ahead).for_each(|(to, byte)| *to = *byte);
            self.start += count;
            return Ok(count);
        }
        match self.io.read(into).await? {
            0 => Err(WireError::Closed),
            count => Ok(count),
        }
    }

    fn read_ahead(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    /// Reads until the buffer contains `bytes` bytes. Returns false if the connection ends before the first byte.
    async fn fill(&mut self, bytes: usize) -> Result<bool, WireError> {
        if self.start > 0 && self.start + bytes > self.buffer.len() - HEAD_READ_BYTES {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while self.end - self.start < bytes {
            let lacks = bytes - (self.end - self.start);
            let end = self.end + lacks.max(HEAD_READ_BYTES);
            let end = end.min(self.buffer.len());
            let room = self.buffer.get_mut(self.end..end).unwrap_or_default();
            match self.io.read(room).await? {
                0 if self.start == self.end => return Ok(false),
                0 => return Err(WireError::Closed),
                count => self.end += count,
            }
        }
        Ok(true)
    }
}

/// Writes and flushes all slices, with as few system calls as possible.
///
/// # Errors
/// If the connection fails.
pub async fn write_all(
    io: &mut (impl AsyncWrite + Unpin),
    mut slices: &mut [IoSlice<'_>],
) -> io::Result<()> {
    // Skip empty slices at the front: writing them would return 0, as a closed connection does.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match io.write_vectored(slices).await? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => IoSlice::advance_slices(&mut slices, count),
        }
    }
    io.flush().await
}
