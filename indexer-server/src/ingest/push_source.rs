//! A source that pushes, from the view of its streams: a queue of commands to its task, and the task's state.

use super::IngestError;
use super::answer::Reply;
use crate::partitions::IndexedSource;
use kvasir_proto::convert::{Heartbeat, Hello, PublishedBatch};
use kvasir_proto::types::Cursor;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Maximum queued commands for the task of a source. A batch is at most one message.
const COMMANDS_MAX: usize = 4;

/// One source that pushes. It outlives its streams.
#[derive(Debug)]
pub(super) struct PushSource {
    commands: mpsc::Sender<Command>,
    shared: Arc<TaskState>,
}

impl PushSource {
    /// Creates a publisher, and the queue that its task reads.
    pub(super) fn new(shared: Arc<TaskState>) -> (Self, mpsc::Receiver<Command>) {
        let (commands, queue) = mpsc::channel(COMMANDS_MAX);
        (Self { commands, shared }, queue)
    }

    /// Sends a command. Returns false if the task has ended.
    pub(super) async fn send(&self, command: Command) -> bool {
        self.commands.send(command).await.is_ok()
    }

    /// Sends a command, or drops it if the queue is full.
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
    /// The source in the index. `None` before its first rank is known.
    source: Mutex<Option<IndexedSource>>,
    /// Whether the source has expired.
    idle: AtomicBool,
    /// Whether the source is catching up.
    catching_up: AtomicBool,
    /// Whether the task was notified that the server's input is paused.
    input_paused: AtomicBool,
    link: Mutex<LinkState>,
}

/// Whether a source has an open stream, and the time of the last change, since the origin.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LinkState {
    pub(super) is_connected: bool,
    pub(super) since: Duration,
}

impl TaskState {
    pub(super) fn with_source(source: Option<IndexedSource>) -> Self {
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

    /// Starts without a stream.
    pub(super) fn begin_link(&self, since: Duration) {
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) =
            LinkState { is_connected: false, since };
    }

    pub(super) fn set_link(&self, is_connected: bool, since: Duration) {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        // A stream that replaces another one does not restart the time.
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

/// Transport of a stream's messages.
#[derive(Debug, Clone, Copy, Default)]
pub enum Arrival {
    /// Over the source's own connection.
    #[default]
    Direct,
    /// Over a broker. Batches may arrive before the first heartbeat, which reports how far the source can be trusted.
    Broker {
        /// The messages come from a log that preserves the order of incarnations.
        in_order: bool,
        /// The messages are old until the stream has caught up.
        is_behind: bool,
    },
}

/// Commands of streams and the registry to the task of a source.
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
        /// `None` if the caller does not wait for the answer.
        reply: Option<Reply>,
    },
    Heartbeat {
        stream: u64,
        heartbeat: Heartbeat,
    },
    /// The stream delivers old messages until it has caught up.
    Behind {
        stream: u64,
    },
    CaughtUp {
        stream: u64,
    },
    /// Whether the server's input is paused. Then a source without a stream does not expire.
    InputPaused(bool),
    /// Removes the source, unless it has a stream.
    GiveUp,
    /// Requests evicted blocks of the source, because they fit again.
    Heal,
    Expected {
        reply: oneshot::Sender<u64>,
    },
    Close {
        stream: u64,
    },
}

/// A stream, accepted by the task.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) stream: u64,
    pub(super) fence: CancellationToken,
    pub(super) applied: Option<Cursor>,
}
