use super::share::Limit;
use kvasir_tls::CertificateNames;
use prometheus_client::metrics::gauge::Gauge;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Limits of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeerLimits {
    /// Active calls with one answer.
    pub calls: usize,
    /// Open streams.
    pub streams: usize,
    /// Open streams other than publishers'.
    pub asking_streams: usize,
    /// Active calls of health and reflection.
    pub side_calls: usize,
    /// Bytes of messages that have not arrived completely.
    pub message_bytes: usize,
    /// Unread bytes of large answers.
    pub large_answer_bytes: usize,
    /// Unread bytes of small answers.
    pub small_answer_bytes: usize,
    /// Bytes of publishers' unanswered batches.
    pub batch_bytes: usize,
}

/// The client of one connection: its active calls and bytes, with their limits.
#[derive(Debug)]
pub struct Peer {
    /// Remote address of the socket. Absent for a socket file, and in tests with no socket.
    pub address: Option<SocketAddr>,
    /// Active calls with one answer.
    pub calls: Limit,
    /// Open streams.
    pub streams: Limit,
    /// Open streams other than publishers'.
    pub asking_streams: Limit,
    /// Streams that are held open. While one exists, the connection is not closed for its age.
    pub held_streams: Limit,
    /// Active calls of health and reflection.
    pub side_calls: Limit,
    /// Bytes of messages that have not arrived completely.
    pub message_bytes: Limit,
    /// Unread bytes of large answers.
    pub large_answer_bytes: Limit,
    /// Unread bytes of small answers.
    pub small_answer_bytes: Limit,
    /// Bytes of publishers' unanswered batches.
    pub batch_bytes: Limit,
    /// Names in the client's certificate; unset if it presented none.
    pub certificate: OnceLock<CertificateNames>,
    /// One permit for long operations, so that they run one after the other for each connection.
    pub turn: Arc<Semaphore>,
    /// Cancelled when the connection is so old that its endless streams end.
    pub aged: CancellationToken,
    answers: Mutex<Answers>,
}

/// Active answers of a connection.
#[derive(Debug, Default)]
struct Answers {
    watched: Vec<Watched>,
    /// Length of the list at which finished answers are removed.
    prune_at: usize,
    /// Number of successive checks in which the client read nothing while an answer waited.
    looks: u32,
}

/// An answer, with its number of successive checks without progress.
#[derive(Debug)]
struct Watched {
    progress: Weak<Progress>,
    taken: u64,
    looks: u32,
}

/// A single answer may stall this many times as long as all answers together.
const ONE_ANSWER_FACTOR: u32 = 4;
/// Minimum length of a connection's list of answers before it is pruned.
const PRUNE_MIN: usize = 256;

/// The transport's progress with one answer.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Pieces passed to the transport and not sent yet.
    untaken: AtomicUsize,
    /// Pieces sent.
    taken: AtomicU64,
}

impl Progress {
    pub(super) fn count_passed(&self) {
        self.untaken.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_sent(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.untaken.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Peer {
    pub(crate) fn new(address: Option<SocketAddr>, limits: PeerLimits) -> Self {
        let limit = |max| Limit::new(max, Gauge::default());
        Self {
            address,
            calls: limit(limits.calls),
            streams: limit(limits.streams),
            asking_streams: limit(limits.asking_streams),
            held_streams: limit(limits.streams),
            side_calls: limit(limits.side_calls),
            message_bytes: limit(limits.message_bytes),
            large_answer_bytes: limit(limits.large_answer_bytes),
            small_answer_bytes: limit(limits.small_answer_bytes),
            batch_bytes: limit(limits.batch_bytes),
            certificate: OnceLock::new(),
            turn: Arc::new(Semaphore::new(1)),
            aged: CancellationToken::new(),
            answers: Mutex::default(),
        }
    }

    /// Monitors an answer until its progress is dropped.
    pub(super) fn watch(&self, progress: &Arc<Progress>) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.watched.len() >= answers.prune_at {
            answers.watched.retain(|answer| answer.progress.strong_count() > 0);
            answers.prune_at = PRUNE_MIN.max(2 * answers.watched.len());
        }
        let progress = Arc::downgrade(progress);
        answers.watched.push(Watched { progress, taken: 0, looks: 0 });
    }

    /// Checks all answers. Returns whether the client has read nothing at all in more than `looks_max` checks, or
    /// nothing of one answer in [`ONE_ANSWER_FACTOR`] times as many: among many answers, one may wait for long. Between
    /// two checks the transport must have had a chance to send. A timeout alone would blame the client for a server
    /// that is too busy to send.
    pub(super) fn stalls(&self, looks_max: u32) -> bool {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waits_at_all = false;
        let mut is_taken = false;
        let mut stalls = false;
        answers.watched.retain_mut(|answer| {
            let Some(progress) = answer.progress.upgrade() else { return false };
            let taken = progress.taken.load(Ordering::Relaxed);
            let waits = progress.untaken.load(Ordering::Relaxed) > 0;
            if !waits || taken != answer.taken {
                is_taken |= taken != answer.taken;
                (answer.taken, answer.looks) = (taken, 0);
            } else {
                answer.looks += 1;
            }
            waits_at_all |= waits;
            stalls |= answer.looks > looks_max.saturating_mul(ONE_ANSWER_FACTOR);
            true
        });
        answers.looks = if is_taken || !waits_at_all { 0 } else { answers.looks + 1 };
        stalls || answers.looks > looks_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_which_nothing_is_taken_for_too_long_is_seen() {
        let peer = Peer::new(None, PeerLimits::default());
        let progress = Arc::new(Progress::default());
        peer.watch(&progress);
        for _ in 0..9 {
            assert!(!peer.stalls(3), "nothing waits");
        }
        for _ in 0..3 {
            progress.count_passed();
            progress.count_passed();
            progress.count_sent();
            for _ in 0..3 {
                assert!(!peer.stalls(3), "something was taken meanwhile");
            }
        }
        assert!(!peer.stalls(3));
        assert!(peer.stalls(3));
        drop(progress);
        assert!(!peer.stalls(3), "it is over");
    }

    #[test]
    fn who_takes_some_answers_may_leave_one_for_longer() {
        let peer = Peer::new(None, PeerLimits::default());
        let [stuck, busy] = [(); 2].map(|()| Arc::new(Progress::default()));
        peer.watch(&stuck);
        peer.watch(&busy);
        stuck.count_passed();
        for _ in 0..3 * ONE_ANSWER_FACTOR {
            busy.count_passed();
            busy.count_sent();
            assert!(!peer.stalls(3));
        }
        busy.count_passed();
        busy.count_sent();
        assert!(peer.stalls(3));
    }

    #[test]
    fn answers_that_are_over_are_not_kept() {
        let peer = Peer::new(None, PeerLimits::default());
        for _ in 0..100_000 {
            peer.watch(&Arc::new(Progress::default()));
        }
        assert!(peer.answers.lock().expect("a lock").watched.len() <= PRUNE_MIN);
    }
}
