use super::lending::Loans;
use super::sending::{Asked, Sending};
use super::shared::Shared;
use crate::convert::Exchange;
use crate::counters::Disconnect;
use crate::limits::{HELLO_TIMEOUT, LAST_WORD_TIMEOUT, LOANS_AHEAD_MAX, VERSION};
use crate::wire::{
    BlockDescription, Fetch, FrameReader, Hello, Kind, Message, Refusal, RefusalCode, Welcome,
    WireError, write_all,
};
use kvasir_access::Role;
use kvasir_process::access::Access;
use kvasir_process::net::Peer;
use kvasir_process::tls::Socket;
use std::future::pending;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tonic::codegen::http::header::AUTHORIZATION;
use tonic::codegen::http::{HeaderMap, HeaderValue};

/// How a connection ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The peer closed it, it reached its maximum age, or this process is stopping.
    Closed,
    /// This side closed the connection.
    Cut(Disconnect, String),
}

/// Why a connection is closed, and the message for the peer.
struct Refused(Disconnect, RefusalCode, String);

enum Stop {
    Ended(Ended),
    Refused(Refused),
}

impl From<Refused> for Stop {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<WireError> for Stop {
    fn from(error: WireError) -> Self {
        if let WireError::Io(error) = &error {
            return Self::Ended(lost(error, Disconnect::Silent));
        }
        if matches!(error, WireError::Closed) {
            return Self::Ended(Ended::Closed);
        }
        Refused(Disconnect::Protocol, RefusalCode::Protocol, error.to_string()).into()
    }
}

/// Converts a socket error; timeouts become `timed_out`.
fn lost(error: &io::Error, timed_out: Disconnect) -> Ended {
    let is_late = error.kind() == io::ErrorKind::TimedOut;
    let why = if is_late { timed_out } else { Disconnect::Lost };
    Ended::Cut(why, error.to_string())
}

/// A peer's connection.
pub(super) struct Connection<'a> {
    owner: &'a Shared,
    reader: FrameReader<Socket>,
    access: Access,
    headers: HeaderMap,
    peer: Arc<Peer>,
    sending: Sending,
    /// What the peer receives of each block.
    exchange: Exchange,
    loans: Loans,
    /// Whether a block may be partly sent. Then no other frame can follow.
    is_sending: bool,
}

impl<'a> Connection<'a> {
    pub(super) fn new(owner: &'a Shared, socket: Socket, access: Access) -> Self {
        let peer = Arc::clone(socket.peer());
        // Peers send no blocks.
        let reader = FrameReader::new(socket, 0);
        let headers = HeaderMap::new();
        let sending = Sending::default();
        let exchange = Exchange::Whole;
        let loans = Loans::default();
        Self { owner, reader, access, headers, peer, sending, exchange, loans, is_sending: false }
    }

    /// Serves until the connection is idle and older than `age`, or `stop` is cancelled. Also returns the loans that
    /// the peer has not returned.
    pub(super) async fn run(
        mut self,
        age: Option<Duration>,
        stop: &CancellationToken,
    ) -> (Ended, Loans) {
        let ended = self.run_to_end(age, stop).await;
        (ended, self.loans)
    }

    /// Serves the connection, as [`run`](Self::run), without its loans. Sends the peer why the connection ends.
    async fn run_to_end(&mut self, age: Option<Duration>, stop: &CancellationToken) -> Ended {
        let old = age.and_then(|age| Instant::now().checked_add(age));
        let served = select! {
            () = stop.cancelled() => {
                // The peer did not cause this end, so the counters of disconnects stay unchanged.
                self.send_refusal(RefusalCode::Stopping, "the agent is stopping").await;
                return Ended::Closed;
            }
            served = self.serve(old) => served,
        };
        match served {
            Ok(()) => Ended::Closed,
            Err(Stop::Ended(ended)) => ended,
            Err(Stop::Refused(Refused(why, code, text))) => {
                self.send_refusal(code, &text).await;
                Ended::Cut(why, text)
            }
        }
    }

    /// Sends the peer why its connection is closed. Returns immediately if a block is partly sent. The connection is
    /// closed even if the peer does not read the message.
    async fn send_refusal(&mut self, code: RefusalCode, text: &str) {
        if self.is_sending {
            return;
        }
        let word = Message::Refusal(Refusal::new(code, text));
        let told = timeout(LAST_WORD_TIMEOUT, self.send(&word)).await;
        if !matches!(told, Ok(Ok(()))) {
            tracing::debug!("a peer did not take the last word");
        }
    }

    async fn send(&mut self, message: &Message) -> io::Result<()> {
        let frame = message.frame(0);
        write_all(self.reader.io(), &mut [IoSlice::new(&frame)]).await
    }

    /// Handles the hello, then fetches one after the other, until the connection is closed or too old.
    async fn serve(&mut self, old: Option<Instant>) -> Result<(), Stop> {
        let hello = timeout(HELLO_TIMEOUT, self.reader.frame()).await;
        let hello = hello.map_err(|_late| {
            let text = format!("no hello has arrived within {HELLO_TIMEOUT:?}");
            Refused(Disconnect::Silent, RefusalCode::Protocol, text)
        })??;
        match hello {
            Some(Message::Hello(hello)) => self.accept_hello(hello).await?,
            Some(other) => return Err(unexpected(&other, Kind::Hello).into()),
            None => return Ok(()),
        }
        loop {
            let aged = overdue(old);
            let frame = select! {
                biased;
                // Only between two requests, so that no request is partly read or answered.
                () = aged, if self.reader.is_between_frames() && self.loans.has_none() => return Ok(()),
                () = overdue(self.loans.next_deadline()) => {
                    let text = "the blocks that were lent were not returned in time".to_owned();
                    return Err(Refused(Disconnect::Late, RefusalCode::Late, text).into());
                }
                frame = self.reader.frame() => frame,
            };
            let frame = match frame {
                // The peer sends no requests, for example because it keeps the connection for later.
                Err(WireError::Io(error))
                    if error.kind() == io::ErrorKind::TimedOut
                        && self.reader.is_between_frames() =>
                {
                    return Ok(());
                }
                frame => frame?,
            };
            match frame {
                Some(Message::Fetch(fetch)) => self.fetch(&fetch).await?,
                Some(Message::Lend(fetch)) => self.lend_blocks(&fetch).await?,
                Some(Message::Return(back)) => self.give_back(back.request)?,
                Some(other) => return Err(unexpected(&other, Kind::Fetch).into()),
                None => return Ok(()),
            }
        }
    }

    /// Checks the peer's hello: version, then rights, then layout. Sends the welcome.
    async fn accept_hello(&mut self, hello: Hello) -> Result<(), Stop> {
        if hello.version != VERSION {
            let text =
                format!("the peer's version is {}, this agent's is {VERSION}", hello.version);
            return Err(Refused(Disconnect::Protocol, RefusalCode::Version, text).into());
        }
        if !hello.authorization.is_empty() {
            let header = HeaderValue::from_str(&hello.authorization);
            let header = header.map_err(|_error| {
                let text = "authorization is no header".to_owned();
                Refused(Disconnect::Denied, RefusalCode::Denied, text)
            })?;
            self.headers.insert(AUTHORIZATION, header);
        }
        // Check the rights first, so that an unauthorised peer learns nothing about the blocks.
        self.let_in()?;
        self.exchange = self.agree_exchange(hello.blocks).await?;
        let worker = self.owner.config.worker.as_str().to_owned();
        let set = self.owner.set.serialize().0;
        let blocks = self.owner.config.blocks.clone();
        let nixl = self.owner.nixl.clone();
        let welcome = Welcome { version: VERSION, worker, set, blocks, nixl };
        let welcome = Message::Welcome(welcome);
        self.send(&welcome).await.map_err(|error| Stop::Ended(lost(&error, Disconnect::Untaken)))
    }

    /// Determines which bytes of each block the peer receives, from the description `theirs`.
    async fn agree_exchange(&self, theirs: BlockDescription) -> Result<Exchange, Refused> {
        let ours = self.owner.config.blocks.clone();
        // Most peers have the same layout, which needs no plan.
        let agreed = if ours == theirs {
            Ok(Exchange::Whole)
        } else {
            let planned = spawn_blocking(move || Exchange::new(&ours, &theirs)).await;
            // The panic was logged.
            planned.map_err(|_panic| {
                let text = "the agent failed".to_owned();
                Refused(Disconnect::Description, RefusalCode::Description, text)
            })?
        };
        agreed.map_err(|error| {
            Refused(Disconnect::Description, RefusalCode::Description, error.to_string())
        })
    }

    /// Checks the caller's identity, role and partition. Called for each request, because identities may change.
    fn let_in(&self) -> Result<(), Refused> {
        let denied = |text: String| Refused(Disconnect::Denied, RefusalCode::Denied, text);
        let blocks = &self.owner.config.blocks;
        let certificate = self.peer.certificate.get();
        let Some(principal) = self.access.principal(&self.headers, certificate) else {
            let text = "no identity: show a valid token, or a client certificate of an identity";
            return Err(denied(text.to_owned()));
        };
        principal.check_role(Role::Publish).map_err(|error| denied(error.to_string()))?;
        let allowed = principal.check_partition(&blocks.tenant, &blocks.model);
        allowed.map_err(|error| denied(error.to_string()))
    }

    /// Lends blocks for reading over NIXL. Fails without NIXL, beyond the limit of loans, and after the deadline.
    async fn lend_blocks(&mut self, fetch: &Fetch) -> Result<(), Stop> {
        self.let_in()?;
        let refused = |text: String| Refused(Disconnect::Protocol, RefusalCode::Protocol, text);
        if self.owner.nixl.is_empty() {
            return Err(
                refused("this agent lends no blocks: its backend is not NIXL".to_owned()).into()
            );
        }
        if !self.loans.has_room() {
            let text = format!("{LOANS_AHEAD_MAX} loans are not returned yet, the limit");
            return Err(refused(text).into());
        }
        self.owner.counters.serve_requests.add(1);
        let limit = Duration::from_millis(fetch.timeout_ms.into());
        let deadline = Instant::now() + limit;
        let lent = self.loans.lend(&mut self.sending, self.owner, fetch, deadline);
        let lent = timeout_at(deadline, lent).await.map_err(|_late| {
            let text = format!("the request took longer than {limit:?}");
            Refused(Disconnect::Late, RefusalCode::Late, text)
        })?;
        self.send(&Message::Lent(lent))
            .await
            .map_err(|error| Stop::Ended(lost(&error, Disconnect::Untaken)))
    }

    /// Ends the loan of a request, which the peer has returned. Fails if the request has no loan.
    fn give_back(&mut self, request: u64) -> Result<(), Refused> {
        let Some(blocks) = self.loans.give_back(request) else {
            let text = format!("request {request} has no lent blocks");
            return Err(Refused(Disconnect::Protocol, RefusalCode::Protocol, text));
        };
        // Counts only returned blocks. Whether a peer received a block that it has not returned is unknown.
        let counters = &self.owner.counters;
        counters.served.add(blocks);
        counters.served_bytes.add(blocks.saturating_mul(self.owner.config.blocks.block_bytes));
        Ok(())
    }

    /// Sends the requested blocks before the deadline. If the deadline passes, the connection ends without a message,
    /// because a block may be partly sent.
    async fn fetch(&mut self, fetch: &Fetch) -> Result<(), Stop> {
        self.let_in()?;
        self.owner.counters.serve_requests.add(1);
        let limit = Duration::from_millis(fetch.timeout_ms.into());
        let deadline = Instant::now() + limit;
        let sent = {
            let asked = Asked { fetch, exchange: &self.exchange, deadline };
            self.sending.send(self.owner, self.reader.io(), asked)
        };
        self.is_sending = true;
        match timeout_at(deadline, sent).await {
            Ok(Ok(())) => {
                self.is_sending = false;
                Ok(())
            }
            Ok(Err(error)) => Err(Stop::Ended(lost(&error, Disconnect::Untaken))),
            Err(_late) => {
                // A block may be partly sent, so no frame can follow.
                let text = format!("the request took longer than {limit:?}");
                Err(Stop::Ended(Ended::Cut(Disconnect::Late, text)))
            }
        }
    }
}

/// Completes at the deadline. Without a deadline, waits forever.
async fn overdue(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

fn unexpected(found: &Message, expected: Kind) -> Refused {
    let error = WireError::Unexpected { found: found.kind(), expected };
    Refused(Disconnect::Protocol, RefusalCode::Protocol, error.to_string())
}
