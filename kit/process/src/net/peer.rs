use super::share::Limit;
use kvasir_tls::CertificateNames;
use prometheus_client::metrics::gauge::Gauge;
use std::net::SocketAddr;
use std::sync::{
    Arc, Mutex, OnceLock, PoisonError, Weak,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Most that one connection may have at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeerLimits {
    /// Calls with one answer.
    pub calls: usize,
    /// Streams.
    pub streams: usize,
    /// Those of them that ask.
    pub asking_streams: usize,
    /// Calls of health and reflection.
    pub side_calls: usize,
    /// Bytes of messages that have not arrived whole.
    pub message_bytes: usize,
    /// Bytes of large answers that the client has not taken.
    pub large_answer_bytes: usize,
    /// The same of small answers.
    pub small_answer_bytes: usize,
    /// Bytes of batches of publishers that wait for their answers.
    pub batch_bytes: usize,
}

/// The client at the other end of one connection: what it has under way, with the limits on that.
#[derive(Debug)]
pub struct Peer {
    /// Its address, as the socket has it; none through a socket file, and in tests without a socket.
    pub address: Option<SocketAddr>,
    /// Calls with one answer.
    pub calls: Limit,
    /// Streams.
    pub streams: Limit,
    /// Those of them that ask.
    pub asking_streams: Limit,
    /// Those of them that are held open: as long as there is one, the connection gets as old as that.
    pub held_streams: Limit,
    /// Calls of health and reflection.
    pub side_calls: Limit,
    /// Bytes of messages that have not arrived whole.
    pub message_bytes: Limit,
    /// Bytes of large answers that the client has not taken.
    pub large_answer_bytes: Limit,
    /// The same of small answers.
    pub small_answer_bytes: Limit,
    /// Bytes of batches of publishers that wait for their answers.
    pub batch_bytes: Limit,
    /// Whom its certificate names; unset if it showed none.
    pub certificate: OnceLock<CertificateNames>,
    /// One turn for what takes long: whatever a connection wants of that, it wants one after the other.
    pub turn: Arc<Semaphore>,
    /// Cancelled once the connection is so old that its endless streams end.
    pub aged: CancellationToken,
    answers: Mutex<Answers>,
}

/// Answers of a connection that may be under way.
#[derive(Debug, Default)]
struct Answers {
    watched: Vec<Watched>,
    /// With so many, those that are over are dropped from the list.
    prune_at: usize,
    /// For how many looks the client has taken nothing while something waited.
    looks: u32,
}

/// An answer, and for how many looks it has not got on.
#[derive(Debug)]
struct Watched {
    progress: Weak<Progress>,
    taken: u64,
    looks: u32,
}

/// So many times as long as nothing at all may be taken, nothing of one answer may be.
const ONE_ANSWER_FACTOR: u32 = 4;
/// Fewest answers in the list of a connection before it is pruned.
const PRUNE_MIN: usize = 256;

/// How far the transport is with one answer.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Pieces that it was given and has not sent.
    untaken: AtomicUsize,
    /// Pieces that it has sent.
    taken: AtomicU64,
}

impl Progress {
    pub(super) fn give(&self) {
        self.untaken.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn take(&self) {
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

    /// Watches over an answer until nobody has its progress any more.
    pub(super) fn watch(&self, progress: &Arc<Progress>) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.watched.len() >= answers.prune_at {
            answers.watched.retain(|answer| answer.progress.strong_count() > 0);
            answers.prune_at = PRUNE_MIN.max(2 * answers.watched.len());
        }
        let progress = Arc::downgrade(progress);
        answers.watched.push(Watched { progress, taken: 0, looks: 0 });
    }

    /// Looks at all answers: whether the client has taken nothing at all for more than so many looks, or nothing of one
    /// answer for [`ONE_ANSWER_FACTOR`] times as many: with many answers at a time, one of them may wait for long. Between
    /// two of them the transport must have had the chance to send: time alone would blame the client for a
    /// server that is too busy to send anything.
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
            progress.give();
            progress.give();
            progress.take();
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
        stuck.give();
        for _ in 0..3 * ONE_ANSWER_FACTOR {
            busy.give();
            busy.take();
            assert!(!peer.stalls(3));
        }
        busy.give();
        busy.take();
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
