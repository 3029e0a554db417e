//! An engine's Prometheus endpoint, as far as it goes: whatever is asked, it has one reply at a time.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// What is answered.
#[derive(Clone)]
pub enum Reply {
    /// These bytes, and the connection ends.
    Bytes(Vec<u8>),
    /// A body without an end.
    Endless,
    /// Nothing, while the connection stays.
    Never,
}

impl Reply {
    pub fn text(body: &str) -> Self {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4; charset=utf-8";
        Self::Bytes(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into())
    }

    pub fn status(status: &str) -> Self {
        Self::Bytes(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").into())
    }
}

/// Ends when dropped.
pub struct Metrics {
    pub address: SocketAddr,
    reply: Arc<Mutex<(Reply, String)>>,
    tasks: JoinSet<()>,
}

impl Metrics {
    pub async fn start(reply: Reply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("a port");
        let reply = Arc::new(Mutex::new((reply, String::new())));
        let mut tasks = JoinSet::new();
        let shared = Arc::clone(&reply);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _peer) = listener.accept().await.expect("a connection");
                let shared = Arc::clone(&shared);
                connections.spawn(async move {
                    // A client may go whenever it likes.
                    let _gone = serve(stream, &shared).await;
                });
            }
        });
        Self { address, reply, tasks }
    }

    pub fn reply(&self, reply: Reply) {
        self.reply.lock().unwrap_or_else(PoisonError::into_inner).0 = reply;
    }

    /// The head of the last request.
    pub fn last_request(&self) -> String {
        self.reply.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Nobody listens any more.
    pub async fn end(&mut self) {
        self.tasks.shutdown().await;
    }
}

async fn serve(mut stream: TcpStream, reply: &Mutex<(Reply, String)>) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let reply = {
        let mut reply = reply.lock().unwrap_or_else(PoisonError::into_inner);
        reply.1 = String::from_utf8_lossy(&head).into_owned();
        reply.0.clone()
    };
    match reply {
        Reply::Bytes(bytes) => stream.write_all(&bytes).await?,
        Reply::Endless => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
            loop {
                stream.write_all(&[b'#'; 4096]).await?;
            }
        }
        // Until the client goes.
        Reply::Never => drop(stream.read_u8().await),
    }
    stream.shutdown().await
}
