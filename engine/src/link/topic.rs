//! Decides by topic which received messages belong to the worker. ZMQ compares only the beginning of a topic:
//! a subscription to `kv@10.0.0.1` also receives `kv@10.0.0.12`, which is another engine.

use super::replay::ReplayError;
use bytes::Bytes;
use std::mem;

/// Maximum bytes of a foreign topic in the log.
const SHOWN_BYTES_MAX: usize = 256;

/// Whether a subscription to `filter` accepts batches of `topic`. An empty filter accepts all topics. Other
/// filters accept the same topic, and longer topics if the filter ends at the end of a name. A name consists
/// of letters, digits, `-`, `_` and `.`. A filter whose last byte is neither a letter nor a digit accepts any
/// continuation.
#[must_use]
pub fn takes_topic(filter: &[u8], topic: &[u8]) -> bool {
    let Some(rest) = topic.strip_prefix(filter) else { return false };
    let is_open = filter.last().is_none_or(|&last| !is_alphanumeric(last));
    is_open || rest.first().is_none_or(|&next| !is_of_name(next))
}

/// Whether two subscriptions to one socket can accept the same batch.
#[must_use]
pub fn topics_overlap(one: &[u8], other: &[u8]) -> bool {
    takes_topic(one, other) || takes_topic(other, one)
}

/// Non-ASCII bytes count as letters, because they belong to other scripts.
const fn is_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

const fn is_of_name(byte: u8) -> bool {
    is_alphanumeric(byte) || matches!(byte, b'-' | b'_' | b'.')
}

/// The topic filter of one link, and the topics seen on its socket.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "facts of a stream, each by itself")]
pub(super) struct Topics {
    filter: Bytes,
    /// Whether the socket has shown a topic that the filter rejects. A replayed batch without a topic may
    /// then belong to another engine.
    is_shared: bool,
    /// Whether replayed batches without a topic were accepted in this incarnation.
    accepted_without_topic: bool,
    /// Whether the link may have accepted batches of another engine.
    is_mixed: bool,
}

impl Topics {
    pub(super) const fn new(filter: Bytes) -> Self {
        Self { filter, is_shared: false, accepted_without_topic: false, is_mixed: false }
    }

    /// Whether the link accepts a live batch.
    pub(super) fn admit_live(&mut self, topic: &[u8]) -> bool {
        let is_own = takes_topic(&self.filter, topic);
        if !is_own && !self.is_shared {
            self.is_shared = true;
            self.is_mixed = self.accepted_without_topic;
            self.log_other(topic);
        }
        is_own
    }

    /// Returns whether the link accepts a replayed batch. Engines with one topic omit it in replays: the link remembers that
    /// it has accepted such a batch.
    ///
    /// # Errors
    /// If the batch has no topic and the socket has several.
    pub(super) fn admit_replayed(&mut self, topic: &[u8]) -> Result<bool, ReplayError> {
        if takes_topic(&self.filter, topic) {
            return Ok(true);
        }
        if !topic.is_empty() {
            return Ok(false);
        }
        if self.is_shared {
            return Err(ReplayError::NoTopic);
        }
        self.accepted_without_topic = true;
        Ok(true)
    }

    /// Whether batches of another engine may have been accepted. Resets this flag.
    pub(super) const fn take_mixed(&mut self) -> bool {
        mem::replace(&mut self.is_mixed, false)
    }

    /// Forgets the accepted batches, because they were dropped.
    pub(super) const fn forget_taken(&mut self) {
        self.accepted_without_topic = false;
        self.is_mixed = false;
    }

    /// The topic to subscribe to. A link with a replay socket reads every topic. Otherwise it could not
    /// detect a second topic, and that replayed batches without a topic may belong to another engine.
    pub(super) fn subscription(filter: &Bytes, has_replay: bool) -> Bytes {
        if has_replay { Bytes::new() } else { filter.clone() }
    }

    fn log_other(&self, topic: &[u8]) {
        if !topic.starts_with(&self.filter) {
            tracing::info!(topic = %self.filter.escape_ascii(), "the socket carries other topics, too");
            return;
        }
        let shown = topic.get(..SHOWN_BYTES_MAX).unwrap_or(topic);
        tracing::warn!(
            topic = %self.filter.escape_ascii(),
            other = %shown.escape_ascii(),
            "the socket has a topic of another engine, whose batches are skipped: if they belong to this worker, register \
             it with the complete topic, or with one that ends in a separator such as @"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscription_takes_its_own_topics_only() {
        let takes = |filter: &str, topic: &str| takes_topic(filter.as_bytes(), topic.as_bytes());
        for (filter, topic) in [
            ("", ""),
            ("", "kv@10.0.0.1@m"),
            ("kv-events", "kv-events"),
            ("kv@10.0.0.1", "kv@10.0.0.1:8000@m"),
            ("kv@10.0.0.1@", "kv@10.0.0.1@m"),
            ("kv@", "kv@10.0.0.12@m"),
            ("kv@pod-", "kv@pod-a@m"),
            ("kv", "kv\0sgl-kv-epoch=1"),
        ] {
            assert!(takes(filter, topic), "{filter:?} takes {topic:?}");
        }
        for (filter, topic) in [
            ("kv", ""),
            ("kv@10.0.0.1", "kv@10.0.0.12:8000@m"),
            ("kv@10.0.0.1@", "kv@10.0.0.12@m"),
            ("kv@pod-1", "kv@pod-10"),
            ("kv@pod", "kv@pod-canary@m"),
            ("kv@a@llama-3", "kv@a@llama-3.1"),
            ("kv@pod", "kv@pod\u{e9}"),
            ("kv@10.0.0.12", "kv@10.0.0.1"),
        ] {
            assert!(!takes(filter, topic), "{filter:?} does not take {topic:?}");
        }
    }

    #[test]
    fn subscriptions_overlap_if_a_topic_is_of_both() {
        let overlap = |one: &str, other: &str| {
            let found = topics_overlap(one.as_bytes(), other.as_bytes());
            assert_eq!(found, topics_overlap(other.as_bytes(), one.as_bytes()));
            found
        };
        assert!(overlap("", "") && overlap("", "kv") && overlap("kv", "kv"));
        assert!(overlap("kv@10.0.0.1", "kv@10.0.0.1@m"));
        assert!(!overlap("kv@10.0.0.1", "kv@10.0.0.12") && !overlap("kv@a@", "kv@b@"));
    }

    #[test]
    fn a_link_that_replays_reads_every_topic() {
        let filter = Bytes::from_static(b"kv@a@");
        assert_eq!(Topics::subscription(&filter, true), "");
        assert_eq!(Topics::subscription(&filter, false), filter);
    }

    #[test]
    fn what_states_no_topic_is_taken_until_another_topic_shows() {
        let taken = |topics: &mut Topics, topic: &[u8]| topics.admit_replayed(topic).ok();
        let mut topics = Topics::new(Bytes::from_static(b"kv@a@"));
        assert_eq!(taken(&mut topics, b"kv@a@m"), Some(true));
        assert_eq!(taken(&mut topics, b"kv@b@m"), Some(false));
        assert!(
            !topics.admit_live(b"kv@b@m") && !topics.take_mixed(),
            "all batches stated a topic"
        );
        assert_eq!(taken(&mut topics, b""), None);

        let mut topics = Topics::new(Bytes::from_static(b"kv@a@"));
        assert_eq!(taken(&mut topics, b""), Some(true));
        assert!(topics.admit_live(b"kv@a@m") && !topics.take_mixed());
        assert!(!topics.admit_live(b"kv@b@m") && topics.take_mixed() && !topics.take_mixed());

        let mut topics = Topics::new(Bytes::new());
        assert_eq!(taken(&mut topics, b""), Some(true));
        assert!(topics.admit_live(b"kv@b@m") && !topics.take_mixed());
    }
}
