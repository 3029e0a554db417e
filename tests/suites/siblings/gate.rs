//! A way between two servers with a gate in it: at some point what one says is held back.

use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::{join, select};

/// Most bytes read at once.
const READ_BYTES: usize = 4_096;

/// The way to a server. Bytes to it go through; of those from it, so many.
pub struct Gate {
    pub address: SocketAddr,
    /// Bytes that are held back.
    pub held: watch::Receiver<usize>,
    open: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl Gate {
    /// Lets `passing` bytes of each connection through at first.
    pub async fn before(server: SocketAddr, passing: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let ((holding, held), (open, opened)) = (watch::channel(0), watch::channel(false));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut ways = JoinSet::new();
            loop {
                let (asking, _) = listener.accept().await.expect("a connection");
                // A server that is gone is gone for who asks as well.
                let Ok(asked) = TcpStream::connect(server).await else { continue };
                let told = (holding.clone(), opened.clone());
                ways.spawn(carry(asking, asked, passing, told));
            }
        });
        Self { address, held, open, _tasks: tasks }
    }

    /// Lets all through that was held back, and all that follows.
    pub fn open(&self) {
        self.open.send_replace(true);
    }
}

/// Carries both directions, until both sides are gone.
async fn carry(
    asking: TcpStream,
    asked: TcpStream,
    passing: usize,
    told: (watch::Sender<usize>, watch::Receiver<bool>),
) {
    let ((mut from, to), (answers, mut there)) = (asking.into_split(), asked.into_split());
    // A side that is gone ends its direction.
    let (_sent, ()) = join!(copy(&mut from, &mut there), answer(answers, to, passing, told));
}

async fn answer(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut passing: usize,
    (holding, mut opened): (watch::Sender<usize>, watch::Receiver<bool>),
) {
    let mut read = vec![0; READ_BYTES];
    let mut held = Vec::new();
    loop {
        let is_open = *opened.borrow_and_update();
        let bytes = select! {
            bytes = from.read(&mut read) => bytes.unwrap_or(0),
            _ = opened.changed(), if !is_open => {
                if to.write_all(&held).await.is_err() {
                    return;
                }
                held.clear();
                continue;
            }
        };
        if bytes == 0 {
            return;
        }
        let through = if is_open { bytes } else { bytes.min(passing) };
        passing -= through.min(passing);
        held.extend_from_slice(&read[through..bytes]);
        holding.send_replace(held.len());
        if to.write_all(&read[..through]).await.is_err() {
            return;
        }
    }
}
