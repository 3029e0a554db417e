use super::staging::{InUse, Pieces, Place, Staging};
use crate::backend::FetchFault;
use crate::limits::{
    AGENTS_ENDING_MAX, READ_PEERS_MAX, READ_POLL_INTERVAL, READS_WAITING_MAX, STAGED_SIZES_MAX,
};
use kvasir_memory::Arena;
use kvasir_memory::nixl::{
    Agent, Direction, Far, Library, NixlError, Peer, Plugin, Progress, TransferId,
};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::{Builder, JoinHandle};
use tokio::sync::oneshot;
use tokio::time::Instant;

type Answer = Result<Pieces, FetchFault>;

/// A transfer to start.
#[derive(Debug)]
struct Read {
    metadata: Vec<u8>,
    pieces: Pieces,
    deadline: Instant,
    done: oneshot::Sender<Answer>,
}

/// The thread that makes all NIXL calls for fetches. Dropping this ends the thread and its transfers.
#[derive(Debug)]
pub(crate) struct Reads {
    /// `None` when the thread must end.
    reads: Option<SyncSender<Read>>,
    staging: Staging,
    thread: Option<JoinHandle<()>>,
}

/// A running transfer. Dropping this abandons it: its slots are freed once NIXL has stopped writing them.
#[derive(Debug)]
pub(crate) struct Reading(oneshot::Receiver<Answer>);

impl Reading {
    /// Waits for the transfer, and returns the filled slots.
    pub(crate) async fn wait(self) -> Answer {
        self.0.await.unwrap_or_else(|_gone| Err(stopped()))
    }
}

fn stopped() -> FetchFault {
    FetchFault::Unavailable("NIXL's thread has stopped".to_owned())
}

impl Reads {
    /// Starts the thread whose NIXL agent reads blocks into the memory of `arena`.
    pub(super) fn start(
        library: Library,
        name: &str,
        plugin: Plugin,
        arena: Arc<Arena>,
    ) -> Result<Self, NixlError> {
        let (reads, taken) = sync_channel(READS_WAITING_MAX);
        let name = name.to_owned();
        let mut agents =
            Agents { library, name, plugin, arena, made: 0, current: None, ending: Vec::new() };
        // Create the agent now, so that invalid options are reported at the start, not at the first fetch.
        agents.current = Some(agents.create_agent()?);
        let thread = Builder::new().name("nixl".to_owned()).spawn(move || agents.run(&taken));
        let thread = thread.map_err(|error: io::Error| {
            tracing::error!(%error, "the thread for NIXL can't be started");
            NixlError::Call { call: "thread", why: "the system has no further thread" }
        })?;
        Ok(Self { reads: Some(reads), staging: Staging::default(), thread: Some(thread) })
    }

    /// Allocates slots for blocks of another size than this agent's blocks; see [`Staging::pieces`].
    pub(crate) async fn stage(
        &self,
        bytes: usize,
        at: &[u64],
        in_use: &InUse,
    ) -> Result<Pieces, FetchFault> {
        self.staging.pieces(bytes, at, in_use).await
    }

    /// Passes a transfer to the thread. Fails if [`READS_WAITING_MAX`] transfers wait already.
    pub(crate) fn start_transfer(
        &self,
        metadata: &[u8],
        pieces: Pieces,
        deadline: Instant,
    ) -> Result<Reading, FetchFault> {
        let (done, reading) = oneshot::channel();
        let read = Read { metadata: metadata.to_vec(), pieces, deadline, done };
        let sent = self.reads.as_ref().map(|reads| reads.try_send(read));
        match sent {
            Some(Ok(())) => Ok(Reading(reading)),
            Some(Err(TrySendError::Full(_))) => {
                Err(FetchFault::NoRoom(format!("{READS_WAITING_MAX} reads wait already")))
            }
            Some(Err(TrySendError::Disconnected(_))) | None => Err(stopped()),
        }
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        drop(self.reads.take());
        let ended = self.thread.take().map(JoinHandle::join);
        if matches!(ended, Some(Err(_))) {
            tracing::error!("the thread for NIXL has panicked");
        }
    }
}

/// A running transfer.
#[derive(Debug)]
struct Flight {
    id: TransferId,
    deadline: Instant,
    done: oneshot::Sender<Answer>,
}

/// An agent with its transfers and loaded peers.
#[derive(Debug)]
struct Generation {
    agent: Agent<Place>,
    /// Registered staging memory.
    staging: Vec<Arc<Arena>>,
    peers: BTreeMap<Vec<u8>, Peer>,
    flights: Vec<Flight>,
    /// The agent keeps slots that only its drop frees, so it starts no more transfers.
    is_spoiled: bool,
}

/// The current agent, and replaced agents with unfinished transfers. A transfer that failed or timed out may still
/// write its slots. Therefore its agent is replaced, and destroyed once its other transfers have ended, at the latest
/// by their deadlines.
#[derive(Debug)]
struct Agents {
    library: Library,
    name: String,
    plugin: Plugin,
    arena: Arc<Arena>,
    /// Number of agents created so far. Each agent's name ends in its number.
    made: u64,
    current: Option<Generation>,
    ending: Vec<Generation>,
}

impl Agents {
    /// Creates a NIXL agent and registers the arena's memory.
    fn create_agent(&mut self) -> Result<Generation, NixlError> {
        let name = format!("{}-{}", self.name, self.made);
        self.made += 1;
        let mut agent = Agent::new(&self.library, &name, &self.plugin)?;
        agent.register(&self.arena)?;
        let peers = BTreeMap::new();
        let flights = Vec::new();
        let staging = Vec::new();
        Ok(Generation { agent, staging, peers, flights, is_spoiled: false })
    }

    /// Starts requested transfers and polls the running ones, until the requesters are gone.
    fn run(mut self, reads: &Receiver<Read>) {
        loop {
            let is_idle = self.current.as_ref().is_none_or(|at| at.flights.is_empty())
                && self.ending.is_empty();
            let read = if is_idle {
                reads.recv().map_err(|_ended| RecvTimeoutError::Disconnected)
            } else {
                reads.recv_timeout(READ_POLL_INTERVAL)
            };
            match read {
                Ok(read) => self.start_transfer(read),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.poll_transfers();
        }
    }

    /// Starts a transfer, or sends the requester why it cannot start. Ignores a transfer whose requester is gone.
    fn start_transfer(&mut self, read: Read) {
        let Read { metadata, pieces, deadline, done } = read;
        if done.is_closed() {
            return;
        }
        let staging = pieces.first().and_then(|piece| piece.with.staging()).map(Arc::clone);
        let id = self.generation(&metadata, staging.as_ref()).and_then(|at| {
            let started = at.stage(staging).and_then(|()| at.start_read(&metadata, pieces));
            let id = started.map_err(|error| lost(&error))?;
            Ok((at, id))
        });
        match id {
            Ok((at, id)) => at.flights.push(Flight { id, deadline, done }),
            Err(fault) => send_answer(done, Err(fault)),
        }
    }

    /// Returns the current agent if it can read from this peer, else a new one. Fails if too many agents are ending.
    fn generation(
        &mut self,
        metadata: &[u8],
        staging: Option<&Arc<Arena>>,
    ) -> Result<&mut Generation, FetchFault> {
        let has_room = |at: &Generation| at.has_room(metadata, staging);
        let is_usable = self.current.as_ref().is_some_and(|at| !at.is_spoiled && has_room(at));
        if !is_usable {
            if self.ending.len() >= AGENTS_ENDING_MAX {
                let text = "reads from peers that do not answer are being stopped: retry later";
                return Err(FetchFault::NoRoom(text.to_owned()));
            }
            self.ending.extend(self.current.take());
            self.current = Some(self.create_agent().map_err(|error| lost(&error))?);
        }
        self.current.as_mut().ok_or_else(stopped)
    }

    /// Polls all transfers, and destroys agents that are no longer needed.
    fn poll_transfers(&mut self) {
        let now = Instant::now();
        self.current.iter_mut().chain(&mut self.ending).for_each(|at| at.poll_transfers(now));
        if let Some(spoiled) = self.current.take_if(|at| at.is_spoiled) {
            self.ending.push(spoiled);
        }
        self.ending.retain(|at| !at.flights.is_empty());
    }
}

impl Generation {
    /// Whether this peer and this memory are registered, or can be.
    fn has_room(&self, metadata: &[u8], staging: Option<&Arc<Arena>>) -> bool {
        (self.peers.len() < READ_PEERS_MAX || self.peers.contains_key(metadata))
            && (self.staging.len() < STAGED_SIZES_MAX || staging.is_none_or(|at| self.has(at)))
    }

    /// Whether this memory is registered.
    fn has(&self, staging: &Arc<Arena>) -> bool {
        self.staging.iter().any(|at| Arc::ptr_eq(at, staging))
    }

    /// Registers staging memory once.
    fn stage(&mut self, staging: Option<Arc<Arena>>) -> Result<(), NixlError> {
        if let Some(arena) = staging.filter(|arena| !self.has(arena)) {
            self.agent.register(&arena)?;
            self.staging.push(arena);
        }
        Ok(())
    }

    /// Starts a transfer from a peer. Connects to the peer first if it is new.
    fn start_read(&mut self, metadata: &[u8], pieces: Pieces) -> Result<TransferId, NixlError> {
        let peer = match self.peers.get(metadata) {
            Some(peer) => peer,
            None => {
                let peer = self.agent.connect(metadata)?;
                self.peers.entry(metadata.to_vec()).or_insert(peer)
            }
        };
        let started = self.agent.start(Direction::Read, Far::Peer(peer), pieces);
        self.is_spoiled |= self.agent.keeps_slots();
        started
    }

    /// Sends the results of transfers that have ended. Overdue transfers fail with `TimedOut`.
    fn poll_transfers(&mut self, now: Instant) {
        for index in (0..self.flights.len()).rev() {
            let Some(flight) = self.flights.get(index) else { continue };
            let ended = match self.agent.poll(flight.id) {
                Progress::Running if now < flight.deadline => continue,
                Progress::Running => Err(FetchFault::TimedOut),
                Progress::Done(pieces) => Ok(pieces),
                Progress::Failed(error) => Err(lost(&error)),
            };
            self.is_spoiled |= ended.is_err();
            let Flight { done, .. } = self.flights.swap_remove(index);
            send_answer(done, ended);
        }
    }
}

fn lost(error: &NixlError) -> FetchFault {
    FetchFault::Lost(error.to_string())
}

/// Sends an answer. If the receiver is gone, the slots are freed.
fn send_answer(done: oneshot::Sender<Answer>, answer: Answer) {
    drop(done.send(answer));
}
