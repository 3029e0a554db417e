//! Generates an endless, seeded workload of conversations.
//!
//! Its statistics are those of the published Mooncake conversation trace (12,031 requests of one hour), measured on
//! that trace and recorded here as quantiles:
//!
//! | statistic | trace |
//! | --- | --- |
//! | prompt length, mean | 12,035 tokens |
//! | answer length, mean | 343 tokens |
//! | gap between arrivals, mean | 294 ms |
//! | blocks of 512 tokens that an infinite cache has already seen in the same prefix | 36.6 % |
//! | turns that follow another turn of their conversation | 38.7 % |
//! | of those, turns that return to an earlier point and continue differently | 15.2 % |
//! | of those, turns that repeat the previous prompt | 2.5 % |
//!
//! A conversation starts with a system prompt that all conversations share (the first 512 tokens, as in the trace). The
//! prompt of a further turn has one of three forms: the previous prompt, its answer and a new message; a part of the
//! previous prompt and other text; or exactly the previous prompt. In the last case the model gives the same answer, so
//! that its blocks are computed into second copies. Tests compare the generator with the table.
//!
//! Unlike in the trace, arrivals are a Poisson process. (The trace rounds them to ticks of three seconds.)

use super::{Request, tokens};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Number of tokens with which every prompt starts.
pub const SYSTEM_TOKENS: usize = 512;
/// Maximum length of a prompt, after which a conversation ends; about the longest prompt of the trace.
pub const PROMPT_TOKENS_MAX: usize = 126_195;
/// Mean gap between the starts of two conversations, in seconds.
const START_GAP_SECS: f64 = 0.480;
/// Fraction of following turns that repeat the previous prompt.
const REPEAT_SHARE: f64 = 0.025;
/// Fraction of following turns that return to an earlier point.
const EDIT_SHARE: f64 = 0.152;
/// Token stream of the system prompt. Streams of conversations and their edits are numbered from 1.
const SYSTEM_STREAM: u64 = 0;

/// Probability that a conversation continues after its n-th turn; the last value applies to all later turns. It is
/// slightly above the trace's, because the trace ends before its last conversations end.
const CONTINUE: [f64; 9] = [0.33, 0.46, 0.55, 0.63, 0.63, 0.75, 0.75, 0.79, 0.83];

/// Tokens of a first prompt.
const FIRST_PROMPT: Quantiles = Quantiles(&[
    (0.00, 891.0),
    (0.10, 905.0),
    (0.25, 1_336.0),
    (0.50, 5_264.0),
    (0.75, 13_056.0),
    (0.90, 25_553.0),
    (0.95, 38_464.0),
    (0.99, 89_867.0),
    (1.00, 126_195.0),
]);
/// Tokens of a message that continues a conversation.
const MESSAGE: Quantiles = Quantiles(&[
    (0.00, 1.0),
    (0.10, 3.0),
    (0.25, 10.0),
    (0.50, 32.0),
    (0.75, 621.0),
    (0.90, 4_690.0),
    (0.95, 7_542.0),
    (0.99, 17_920.0),
    (1.00, 91_467.0),
]);
/// Tokens of an answer.
const ANSWER: Quantiles = Quantiles(&[
    (0.00, 1.0),
    (0.01, 3.0),
    (0.05, 10.0),
    (0.10, 24.0),
    (0.25, 156.0),
    (0.50, 350.0),
    (0.75, 472.0),
    (0.90, 597.0),
    (0.95, 698.0),
    (0.99, 1_115.0),
    (1.00, 2_000.0),
]);
/// Seconds from one turn to the next.
const TURN_GAP_SECS: Quantiles = Quantiles(&[
    (0.00, 3.0),
    (0.01, 12.0),
    (0.05, 30.0),
    (0.10, 42.0),
    (0.25, 66.0),
    (0.50, 123.0),
    (0.75, 264.0),
    (0.90, 480.0),
    (0.95, 615.0),
    (0.99, 1_473.0),
    (1.00, 3_030.0),
]);

/// A distribution, given by some of its quantiles in ascending order; interpolation is geometric.
pub(super) struct Quantiles(pub(super) &'static [(f64, f64)]);

impl Quantiles {
    pub(super) fn sample(&self, rng: &mut ChaCha8Rng) -> f64 {
        let share = rng.random::<f64>();
        let above = self.0.iter().position(|&(at, _)| at > share).unwrap_or(self.0.len() - 1);
        let ((from, low), (to, high)) = (self.0[above - 1], self.0[above]);
        low * (high / low).powf((share - from) / (to - from))
    }

    pub(super) fn tokens(&self, rng: &mut ChaCha8Rng) -> usize {
        self.sample(rng).round() as usize
    }
}

/// Origin of a turn's prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TurnKind {
    /// The first turn of a conversation.
    First,
    /// Previous prompt, its answer, new message.
    Next,
    /// A part of the previous prompt, then other text.
    Edit,
    /// The previous prompt.
    Repeat,
}

/// A request without its tokens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    /// Arrival time, from the start of the workload.
    pub arrival: Duration,
    /// Number of the conversation, from 1.
    pub conversation: u64,
    /// Number of the turn within the conversation, from 1.
    pub number: usize,
    /// Origin of the prompt.
    pub kind: TurnKind,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    pub answer_tokens: usize,
    /// Parts of the text: token streams, each with the position from which it is read, ascending.
    text: Vec<(u64, usize)>,
}

/// The generator: an endless iterator of requests by arrival.
#[derive(Debug)]
pub struct Conversations {
    seed: u64,
    rng: ChaCha8Rng,
    next_start: Duration,
    next_stream: u64,
    /// Next turns of conversations that continue, the earliest on top.
    following: BinaryHeap<Reverse<Turn>>,
}

impl Conversations {
    /// The workload of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            rng: ChaCha8Rng::seed_from_u64(seed),
            next_start: Duration::ZERO,
            next_stream: SYSTEM_STREAM + 1,
            following: BinaryHeap::new(),
        }
    }

    /// The next turn, without its tokens.
    pub fn next_turn(&mut self) -> Turn {
        let due = |turn: &Reverse<Turn>| turn.0.arrival <= self.next_start;
        let turn = match self.following.peek().is_some_and(due) {
            true => self.following.pop().map(|Reverse(turn)| turn),
            false => None,
        };
        let turn = turn.unwrap_or_else(|| self.start());
        if let Some(next) = self.follow(&turn) {
            self.following.push(Reverse(next));
        }
        turn
    }

    /// The tokens of a turn.
    #[must_use]
    pub fn request(&self, turn: &Turn) -> Request {
        let end = turn.prompt_tokens + turn.answer_tokens;
        let ends = turn.text.iter().skip(1).map(|&(_, start)| start).chain([end]);
        let mut prompt = Vec::with_capacity(end);
        for (&(stream, start), end) in turn.text.iter().zip(ends) {
            tokens::append(self.seed, stream, start..end, &mut prompt);
        }
        let answer = prompt.split_off(turn.prompt_tokens);
        Request { arrival: turn.arrival, prompt, answer }
    }

    fn start(&mut self) -> Turn {
        let stream = self.take_stream();
        let turn = Turn {
            arrival: self.next_start,
            conversation: stream,
            number: 1,
            kind: TurnKind::First,
            prompt_tokens: FIRST_PROMPT.tokens(&mut self.rng),
            answer_tokens: ANSWER.tokens(&mut self.rng),
            text: vec![(SYSTEM_STREAM, 0), (stream, SYSTEM_TOKENS)],
        };
        // An exponential gap: arrivals are independent.
        let gap = -START_GAP_SECS * (1.0 - self.rng.random::<f64>()).ln();
        self.next_start += Duration::from_secs_f64(gap);
        turn
    }

    /// The turn after `turn`, if the conversation continues.
    fn follow(&mut self, turn: &Turn) -> Option<Turn> {
        let chance = CONTINUE[(turn.number - 1).min(CONTINUE.len() - 1)];
        if self.rng.random::<f64>() >= chance {
            return None;
        }
        let mut next = turn.clone();
        next.arrival += Duration::from_secs_f64(TURN_GAP_SECS.sample(&mut self.rng));
        next.number += 1;
        let kind = self.rng.random::<f64>();
        if kind < REPEAT_SHARE {
            next.kind = TurnKind::Repeat;
            return Some(next);
        }
        if kind < REPEAT_SHARE + EDIT_SHARE {
            next.kind = TurnKind::Edit;
            self.edit(&mut next);
        } else {
            next.kind = TurnKind::Next;
            next.prompt_tokens += turn.answer_tokens + MESSAGE.tokens(&mut self.rng);
        }
        next.answer_tokens = ANSWER.tokens(&mut self.rng);
        (next.prompt_tokens <= PROMPT_TOKENS_MAX).then_some(next)
    }

    /// Replaces the text from a random point on; early points are more likely, as in the trace.
    fn edit(&mut self, turn: &mut Turn) {
        let open = turn.prompt_tokens - SYSTEM_TOKENS;
        let point = SYSTEM_TOKENS + (open as f64 * self.rng.random::<f64>().powi(2)) as usize;
        turn.text.retain(|&(_, start)| start < point);
        turn.text.push((self.take_stream(), point));
    }

    fn take_stream(&mut self) -> u64 {
        self.next_stream += 1;
        self.next_stream - 1
    }
}

impl Iterator for Conversations {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        let turn = self.next_turn();
        Some(self.request(&turn))
    }
}

#[cfg(test)]
#[path = "conversations_test.rs"]
mod conversations_test;
