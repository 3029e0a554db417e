//! A keep-alive HTTP connection with minimal overhead, so that the client's cost is not counted for the server.

use anyhow::{Context, Result, bail, ensure};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Maximum size of an answer's head, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Maximum size of an answer's body, in bytes.
const BODY_BYTES_MAX: usize = 1 << 30;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    buffer: Vec<u8>,
}

impl Connection {
    /// Wraps a fresh connection.
    pub fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        let address = stream.peer_addr()?;
        Ok(Self { stream, address, buffer: Vec::new() })
    }

    /// Encodes a request, to be sent repeatedly.
    pub fn request(&self, method: &str, path: &str, body: &str) -> Vec<u8> {
        let address = self.address;
        let length = body.len();
        format!(
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        )
        .into_bytes()
    }

    /// Sends a request and reads the answer, whose status must be a success.
    pub async fn exchange(&mut self, request: &[u8]) -> Result<&[u8]> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        let (head_bytes, body_bytes) = loop {
            self.read().await?;
            if let Some(sizes) = head(&self.buffer)? {
                break sizes;
            }
        };
        ensure!(body_bytes <= BODY_BYTES_MAX, "a body of {body_bytes} bytes");
        let whole = head_bytes + body_bytes;
        self.buffer.reserve(whole.saturating_sub(self.buffer.len()));
        while self.buffer.len() < whole {
            self.read().await?;
        }
        ensure!(self.buffer.len() == whole, "bytes after the answer");
        let body = &self.buffer[head_bytes..];
        if !self.buffer.starts_with(b"HTTP/1.1 2") {
            let line = self.buffer.split(|byte| *byte == b'\r').next().unwrap_or_default();
            bail!("{}: {}", String::from_utf8_lossy(line), String::from_utf8_lossy(body));
        }
        Ok(body)
    }

    async fn read(&mut self) -> Result<()> {
        let read = self.stream.read_buf(&mut self.buffer).await?;
        ensure!(read > 0, "the server closed the connection");
        Ok(())
    }
}

/// Sizes of the head and of the body in bytes, once the head is complete.
fn head(bytes: &[u8]) -> Result<Option<(usize, usize)>> {
    let searched = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
    let Some(end) = searched.windows(4).position(|window| window == b"\r\n\r\n") else {
        ensure!(bytes.len() < HEAD_BYTES_MAX, "the head of the answer is too long");
        return Ok(None);
    };
    let text = std::str::from_utf8(&bytes[..end])?;
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let length = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let (_, length) = length.context("the answer has no content-length")?;
    Ok(Some((end + 4, length.trim().parse()?)))
}
