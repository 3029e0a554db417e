//! A source that pushes, as its streams see it: a queue of commands to its task, and the task's state.

use super::{IngestError, answer::Reply};
use crate::partitions::IndexedSource;
use kvasir_proto::{
    convert::{Heartbeat, Hello, PublishedBatch},
    types::Cursor,
};
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Commands that wait for the task of a source; a batch is up to one message.
const COMMANDS_MAX: usize = 4;

/// One source that pushes, across its streams.
#[derive(Debug)]
pub(super) struct PushSource {
    commands: mpsc::Sender<Command>,
    shared: Arc<TaskState>,
}

impl PushSource {
    /// A publisher, and the queue that its task reads.
    pub(super) fn new(shared: Arc<TaskState>) -> (Self, mpsc::Receiver<Command>) {
        let (commands, queue) = mpsc::channel(COMMANDS_MAX);
        (Self { commands, shared }, queue)
    }

    /// Sends a command; false if the task has ended.
    pub(super) async fn send(&self, command: Command) -> bool {
        self.commands.send(command).await.is_ok()
    }

    /// Sends a command unless the queue is full.
    pub(super) fn try_send(&self, command: Command) {
        let _full = self.commands.try_send(command);
    }

    pub(super) fn shared(&self) -> &TaskState {
        &self.shared
    }
}

/// The state of a source's task. It outlives the task.
#[derive(Debug, Default)]
pub(super) struct TaskState {
    /// The source in the index; none before its first rank is known.
    source: Mutex<Option<IndexedSource>>,
    /// Whether the source has expired.
    idle: AtomicBool,
    /// Whether it is catching up.
    catching_up: AtomicBool,
    /// Whether its task knows that the server's input is paused.
    input_paused: AtomicBool,
    link: Mutex<LinkState>,
}

/// Whether a source has an open stream, and since when it has or has not, since the origin.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LinkState {
    pub(super) is_connected: bool,
    pub(super) since: Duration,
}

impl TaskState {
    pub(super) fn of(source: Option<IndexedSource>) -> Self {
        Self { source: Mutex::new(source), ..Self::default() }
    }

    pub(super) fn source(&self) -> Option<IndexedSource> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_source(&self, source: Option<IndexedSource>) {
        *self.source.lock().unwrap_or_else(PoisonError::into_inner) = source;
    }

    pub(super) fn link(&self) -> LinkState {
        *self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has no stream yet.
    pub(super) fn begin_link(&self, since: Duration) {
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) =
            LinkState { is_connected: false, since };
    }

    pub(super) fn set_link(&self, is_connected: bool, since: Duration) {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        // A stream that replaces another one is no new beginning.
        if link.is_connected != is_connected {
            *link = LinkState { is_connected, since };
        }
    }

    pub(super) fn is_input_paused(&self) -> bool {
        self.input_paused.load(Ordering::Acquire)
    }

    pub(super) fn set_input_paused(&self, paused: bool) {
        self.input_paused.store(paused, Ordering::Release);
    }

    pub(super) fn is_catching_up(&self) -> bool {
        self.catching_up.load(Ordering::Acquire)
    }

    pub(super) fn set_catching_up(&self, catching_up: bool) {
        self.catching_up.store(catching_up, Ordering::Release);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.idle.load(Ordering::Acquire)
    }

    pub(super) fn set_idle(&self, idle: bool) {
        self.idle.store(idle, Ordering::Release);
    }
}

/// How the messages of a stream arrive.
#[derive(Debug, Clone, Copy, Default)]
pub enum Arrival {
    /// By a connection of the source's own.
    #[default]
    Direct,
    /// By a broker. Batches may come before the first heartbeat, which states how far the source can be trusted.
    Broker {
        /// They come from a log that preserves the order of incarnations.
        in_order: bool,
        /// They are not the newest ones until the stream has caught up.
        is_behind: bool,
    },
}

/// What streams and the registry send to the task of a source.
#[derive(Debug)]
pub(super) enum Command {
    Open {
        hello: Hello,
        arrival: Arrival,
        reply: oneshot::Sender<Result<Opened, IngestError>>,
    },
    Batch {
        stream: u64,
        batch: PublishedBatch,
        /// None if no one waits for the answer.
        reply: Option<Reply>,
    },
    Heartbeat {
        stream: u64,
        heartbeat: Heartbeat,
    },
    /// The stream brings old messages until it has caught up.
    Behind {
        stream: u64,
    },
    CaughtUp {
        stream: u64,
    },
    /// Whether the server's input is paused: then the silence of a source without a stream means nothing.
    InputPaused(bool),
    /// Forgets the source, unless it has a stream.
    GiveUp,
    /// Blocks of the source were shed, and there is room for them again.
    Heal,
    Expected {
        reply: oneshot::Sender<u64>,
    },
    Close {
        stream: u64,
    },
}

/// A stream that the task has accepted.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) stream: u64,
    pub(super) fence: CancellationToken,
    pub(super) applied: Option<Cursor>,
}
