use std::time::Duration;

use tokio::time::Instant;

use super::Limits;

/// Heartbeat timer: when to send a PING, and when a silent peer counts as dead. Pure: time is an argument.
#[derive(Debug)]
pub(super) struct Heartbeat {
    interval: Duration,
    /// Maximum time after a PING without any bytes from the peer.
    grace: Duration,
    silence: Duration,
    /// Whether the peer supports PING (ZMTP 3.1 and later).
    pings: bool,
    last_received: Instant,
    next_ping: Instant,
    /// When the first PING since `last_received` was sent.
    unanswered_since: Option<Instant>,
}

/// The action at a reached deadline.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Ping,
    /// The peer was silent for longer than the configured time.
    Dead(Duration),
}

// === impl Heartbeat ===

impl Heartbeat {
    pub(super) fn new(limits: &Limits, pings: bool, now: Instant) -> Self {
        Self {
            interval: limits.heartbeat_interval,
            grace: limits.heartbeat_timeout.saturating_sub(limits.heartbeat_interval),
            silence: limits.silence_timeout,
            pings,
            last_received: now,
            next_ping: now + limits.heartbeat_interval,
            unanswered_since: None,
        }
    }

    /// Records that bytes arrived.
    pub(super) fn received(&mut self, now: Instant) {
        self.last_received = now;
        self.unanswered_since = None;
    }

    /// When to call [`Heartbeat::next_action`] again.
    pub(super) fn deadline(&self) -> Instant {
        if !self.pings {
            return self.last_received + self.silence;
        }
        match self.unanswered_since {
            Some(since) => self.next_ping.min(since + self.grace),
            None => self.next_ping,
        }
    }

    /// The action that is due. PINGs are sent even while the peer sends: a peer that enforces our announced
    /// time to live counts only bytes that *we* send.
    pub(super) fn next_action(&mut self, now: Instant) -> Due {
        if !self.pings {
            let dead = now >= self.last_received + self.silence;
            return if dead { Due::Dead(self.silence) } else { Due::Nothing };
        }
        if self.unanswered_since.is_some_and(|since| now >= since + self.grace) {
            return Due::Dead(self.interval + self.grace);
        }
        if now < self.next_ping {
            return Due::Nothing;
        }
        self.next_ping = now + self.interval;
        self.unanswered_since.get_or_insert(now);
        Due::Ping
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn heartbeat(pings: bool) -> (Heartbeat, Instant) {
        let limits = Limits {
            heartbeat_interval: 10 * SECOND,
            heartbeat_timeout: 30 * SECOND,
            silence_timeout: 120 * SECOND,
            ..Limits::DEFAULTS
        };
        let start = Instant::now();
        (Heartbeat::new(&limits, pings, start), start)
    }

    /// Runs all deadlines until the peer counts as dead. Returns the seconds of PINGs and of death.
    fn run_silent(mut heartbeat: Heartbeat, start: Instant) -> (Vec<u64>, u64) {
        let mut pings = Vec::new();
        loop {
            let now = heartbeat.deadline();
            match heartbeat.next_action(now) {
                Due::Ping => pings.push((now - start).as_secs()),
                Due::Dead(_) => return (pings, (now - start).as_secs()),
                Due::Nothing => panic!("a deadline with nothing due at {:?}", now - start),
            }
        }
    }

    #[test]
    fn a_silent_peer_is_pinged_then_given_up() {
        let (heartbeat, start) = heartbeat(true);
        assert_eq!(run_silent(heartbeat, start), (vec![10, 20], 30));
    }

    #[test]
    fn a_silent_peer_without_ping_is_given_up_later() {
        let (heartbeat, start) = heartbeat(false);
        assert_eq!(run_silent(heartbeat, start), (vec![], 120));
    }

    #[test]
    fn any_traffic_answers_a_ping() {
        let (mut heartbeat, start) = heartbeat(true);
        assert_eq!(heartbeat.next_action(start + 10 * SECOND), Due::Ping);
        heartbeat.received(start + 11 * SECOND);
        assert_eq!(heartbeat.next_action(start + 20 * SECOND), Due::Ping);
        assert_eq!(heartbeat.next_action(start + 39 * SECOND), Due::Ping);
        assert_eq!(heartbeat.next_action(start + 40 * SECOND), Due::Dead(30 * SECOND));
    }

    #[test]
    fn a_talking_peer_is_pinged_all_the_same() {
        let (mut heartbeat, start) = heartbeat(true);
        for second in 1..=10 {
            heartbeat.received(start + second * SECOND);
        }
        assert_eq!(heartbeat.next_action(start + 10 * SECOND), Due::Ping);
    }
}
