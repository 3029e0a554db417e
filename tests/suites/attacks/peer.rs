//! A client that speaks HTTP/2 by hand: it decides what it sends, and what it takes.

use anyhow::{Context, Result};
use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use prost::Message;
use std::future::poll_fn;
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tonic::Code;
use tonic::codegen::http::{HeaderMap, Method, Request};

/// Bytes that the server may send over all streams of a connection before they are taken.
const CONNECTION_WINDOW: u32 = 1 << 30;

/// A connection. It answers pings, and leaves when it is dropped.
pub struct Peer {
    requests: SendRequest<Bytes>,
    driver: JoinHandle<()>,
}

/// A call of which nothing but the head is sent yet.
pub struct Call {
    /// What comes back.
    pub answer: ResponseFuture,
    /// What is sent.
    pub body: SendStream<Bytes>,
}

impl Peer {
    /// Connects. The server may send so many bytes of each answer that nobody takes.
    pub async fn connect(address: SocketAddr, window: u32) -> Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let mut builder = Builder::new();
        builder.initial_window_size(window).initial_max_send_streams(1);
        // What waits here must not end the connection: the server decides.
        builder.initial_connection_window_size(CONNECTION_WINDOW);
        let (requests, connection) = builder.handshake(socket).await?;
        // It ends with the connection, which the server may close.
        let driver = tokio::spawn(async { drop(connection.await) });
        Ok(Self { requests, driver })
    }

    /// Begins a call once the server lets another one begin.
    pub async fn begin(&mut self, path: &str) -> Result<Call> {
        poll_fn(|context| self.requests.poll_ready(context)).await?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://attacker{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        let (answer, body) = self.requests.send_request(request, false)?;
        Ok(Call { answer, body })
    }

    /// Sends a whole request with one message, and leaves its answer where it is.
    pub async fn call(&mut self, path: &str, message: &impl Message) -> Result<Call> {
        let mut call = self.begin(path).await?;
        call.body.send_data(framed(message), true)?;
        Ok(call)
    }

    /// Most calls that the server lets be under way on the connection; 1 until it has said.
    pub fn calls_max(&self) -> usize {
        self.requests.current_max_send_streams()
    }

    /// Whether the server has closed the connection.
    pub fn is_closed(&self) -> bool {
        self.driver.is_finished()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Reads an answer to its end: its status.
pub async fn status(answer: ResponseFuture) -> Result<Code> {
    let (head, mut body) = answer.await?.into_parts();
    if head.headers.contains_key("grpc-status") {
        return code(&head.headers);
    }
    while let Some(bytes) = body.data().await {
        take(&mut body, &bytes?)?;
    }
    code(&body.trailers().await?.context("an answer without an end")?)
}

/// Reads messages of an answer, so many at least or until it ends: how many came.
pub async fn messages(body: &mut RecvStream, wanted: usize) -> Result<usize> {
    let mut buffer = BytesMut::new();
    let mut came = 0;
    while came < wanted {
        let Some(bytes) = body.data().await else { break };
        let bytes = bytes?;
        take(body, &bytes)?;
        buffer.extend_from_slice(&bytes);
        while let Some(head) = buffer.first_chunk::<5>() {
            let [_, length @ ..] = *head;
            let end = 5 + u32::from_be_bytes(length) as usize;
            if buffer.len() < end {
                break;
            }
            drop(buffer.split_to(end));
            came += 1;
        }
    }
    Ok(came)
}

fn take(body: &mut RecvStream, bytes: &Bytes) -> Result<()> {
    Ok(body.flow_control().release_capacity(bytes.len())?)
}

fn code(headers: &HeaderMap) -> Result<Code> {
    let status = headers.get("grpc-status").context("no grpc-status")?;
    Ok(Code::from_bytes(status.as_bytes()))
}

/// A message as it travels.
pub fn framed(message: &impl Message) -> Bytes {
    let mut bytes = head(message.encoded_len());
    message.encode(&mut bytes).expect("room for the message");
    bytes.freeze()
}

/// What begins a message of so many bytes.
pub fn head(length: usize) -> BytesMut {
    let mut bytes = BytesMut::with_capacity(5 + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).expect("a short message"));
    bytes
}
