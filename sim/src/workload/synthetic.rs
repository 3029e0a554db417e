//! Generates workloads other than conversations, without tokens: each prompt is a list of token streams. The constants
//! are assumptions.
//!
//! - [`documents`]: requests about one shared document, each followed by a text of its own.
//! - [`agents`]: agents that call tools in quick succession, with long instructions that all agents of a kind share;
//!   and plain requests without shared text.
//! - [`prefixes`]: requests with one of several shared prefixes, each followed by a text of its own.
//! - [`paced`]: sessions over one short system prompt, with one active request at a time.
//!
//! Arrivals are a Poisson process, of requests or of sessions, except in [`paced`].

use super::conversations::Quantiles;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Tokens of the shared document.
pub const DOCUMENT_TOKENS: usize = 12_000;
/// Tokens of the instructions, by kind of agent.
pub const INSTRUCTION_TOKENS: [usize; 6] = [11_000, 8_000, 6_500, 5_000, 4_000, 3_000];
/// Maximum length of an agent's prompt, after which its session ends.
pub const AGENT_PROMPT_TOKENS_MAX: usize = 100_000;
/// Number of shared prefixes, and tokens per prefix.
pub const PREFIXES: (usize, usize) = (24, 900);
/// Number of paced sessions, and turns per session.
pub const PACED_SESSIONS: (usize, usize) = (200, 8);
/// Number of tokens with which all paced sessions begin.
const SYSTEM_TOKENS: usize = 64;
/// Number of paced sessions that are open at a time.
const OPEN_SESSIONS: usize = 10;
/// Seconds from one paced request to the next; longer than an answer takes.
const PACE_SECS: u64 = 10;
/// Mean gap between the arrivals of requests, or of sessions, in seconds.
const GAP_SECS: f64 = 1.0;
/// Fraction of plain requests among the starts of the agents' workload.
const PLAIN_SHARE: f64 = 0.3;
/// Probability that an agent calls another tool.
const NEXT_STEP_SHARE: f64 = 0.88;
/// First number of the token streams that belong to one request or session.
const OWN_STREAMS: u64 = 1_000;

/// Tokens of a request's own text after the document.
const QUESTION: Quantiles = Quantiles(&[
    (0.0, 12.0),
    (0.25, 60.0),
    (0.5, 400.0),
    (0.75, 2_000.0),
    (0.95, 8_000.0),
    (1.0, 16_000.0),
]);
/// Tokens of a request's own text after a shared prefix, and of its answer.
const SHORT: Quantiles = Quantiles(&[(0.0, 20.0), (0.5, 80.0), (1.0, 200.0)]);
/// Tokens of a message of a paced session, and of its answer.
const MESSAGE: Quantiles = Quantiles(&[(0.0, 30.0), (0.5, 150.0), (1.0, 400.0)]);
/// Tokens of a plain prompt, and of an agent's task.
const TASK: Quantiles = Quantiles(&[(0.0, 30.0), (0.5, 400.0), (0.9, 3_000.0), (1.0, 8_000.0)]);
/// Tokens of a tool's output.
const TOOL_OUTPUT: Quantiles =
    Quantiles(&[(0.0, 20.0), (0.5, 600.0), (0.9, 4_000.0), (0.99, 12_000.0), (1.0, 20_000.0)]);
/// Tokens of an answer about a document, or to a plain prompt.
const ANSWER: Quantiles = Quantiles(&[(0.0, 20.0), (0.5, 250.0), (0.9, 600.0), (1.0, 1_200.0)]);
/// Tokens of the answer in an agent's step.
const STEP: Quantiles = Quantiles(&[(0.0, 15.0), (0.5, 90.0), (0.9, 400.0), (1.0, 1_500.0)]);
/// Seconds from one step of an agent to the next.
const STEP_GAP_SECS: Quantiles = Quantiles(&[(0.0, 1.0), (0.5, 6.0), (0.9, 25.0), (1.0, 90.0)]);

/// A request without its tokens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sketch {
    /// Arrival time, from the start of the workload.
    pub arrival: Duration,
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: usize,
    /// Tokens of the answer, at least 1.
    pub answer_tokens: usize,
    /// Parts of prompt and answer: token streams, each with the position from which it is read, ascending.
    pub text: Vec<(u64, usize)>,
}

/// An agent's session.
#[derive(Debug)]
struct Agents {
    rng: ChaCha8Rng,
    next_start: Duration,
    next_stream: u64,
    /// Next steps of agents that continue, the earliest on top.
    following: BinaryHeap<Reverse<Sketch>>,
}

/// The first `count` requests about one document, for this seed.
#[must_use]
pub fn documents(seed: u64, count: usize) -> Vec<Sketch> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut arrival = Duration::ZERO;
    let sketch = |number: usize| {
        arrival += gap(&mut rng);
        let text = vec![(0, 0), (OWN_STREAMS + number as u64, DOCUMENT_TOKENS)];
        let prompt_tokens = DOCUMENT_TOKENS + QUESTION.tokens(&mut rng);
        Sketch { arrival, prompt_tokens, answer_tokens: ANSWER.tokens(&mut rng), text }
    };
    (0..count).map(sketch).collect()
}

/// The first `count` requests with one of [`PREFIXES`], for this seed.
#[must_use]
pub fn prefixes(seed: u64, count: usize) -> Vec<Sketch> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut arrival = Duration::ZERO;
    let (prefixes, tokens) = PREFIXES;
    let sketch = |number: usize| {
        arrival += gap(&mut rng);
        let prefix = rng.random_range(0..prefixes) as u64;
        let text = vec![(prefix, 0), (OWN_STREAMS + number as u64, tokens)];
        let prompt_tokens = tokens + SHORT.tokens(&mut rng);
        Sketch { arrival, prompt_tokens, answer_tokens: SHORT.tokens(&mut rng), text }
    };
    (0..count).map(sketch).collect()
}

/// The first `count` requests of [`PACED_SESSIONS`] sessions that share a system prompt, for this seed. The next
/// request arrives when the answer to the previous one is complete, from any of the open sessions.
#[must_use]
pub fn paced(seed: u64, count: usize) -> Vec<Sketch> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (sessions, turns) = PACED_SESSIONS;
    let mut ahead = 0..sessions as u64;
    let mut open: Vec<_> =
        ahead.by_ref().take(OPEN_SESSIONS).map(|at| (at, 0, SYSTEM_TOKENS)).collect();
    let mut sketches = Vec::with_capacity(sessions * turns);
    while !open.is_empty() && sketches.len() < count {
        let at = rng.random_range(0..open.len());
        let (session, turn, before) = open.swap_remove(at);
        let prompt_tokens = before + MESSAGE.tokens(&mut rng);
        let answer_tokens = MESSAGE.tokens(&mut rng);
        if turn + 1 < turns {
            open.push((session, turn + 1, prompt_tokens + answer_tokens));
        } else {
            open.extend(ahead.next().map(|next| (next, 0, SYSTEM_TOKENS)));
        }
        let arrival = Duration::from_secs(PACE_SECS * sketches.len() as u64);
        let text = vec![(0, 0), (OWN_STREAMS + session, SYSTEM_TOKENS)];
        sketches.push(Sketch { arrival, prompt_tokens, answer_tokens, text });
    }
    sketches
}

/// The first `count` requests of agents, and plain ones, for this seed.
#[must_use]
pub fn agents(seed: u64, count: usize) -> Vec<Sketch> {
    let mut agents = Agents {
        rng: ChaCha8Rng::seed_from_u64(seed),
        next_start: Duration::ZERO,
        next_stream: OWN_STREAMS,
        following: BinaryHeap::new(),
    };
    (0..count).map(|_| agents.next_step()).collect()
}

fn gap(rng: &mut ChaCha8Rng) -> Duration {
    Duration::from_secs_f64(-GAP_SECS * (1.0 - rng.random::<f64>()).ln())
}

// === impl Agents ===

impl Agents {
    fn next_step(&mut self) -> Sketch {
        let is_due = self.following.peek().is_some_and(|next| next.0.arrival <= self.next_start);
        let due = if is_due { self.following.pop() } else { None };
        let step = due.map(|Reverse(step)| step).unwrap_or_else(|| self.start());
        let has_instructions = step.text.len() > 1;
        if has_instructions && self.rng.random::<f64>() < NEXT_STEP_SHARE {
            let next = self.follow(&step);
            if next.prompt_tokens <= AGENT_PROMPT_TOKENS_MAX {
                self.following.push(Reverse(next));
            }
        }
        step
    }

    /// A plain request, or the first step of an agent. Kinds with long instructions are as frequent as others.
    fn start(&mut self) -> Sketch {
        let rng = &mut self.rng;
        let own = self.next_stream;
        let arrival = self.next_start;
        self.next_stream += 1;
        self.next_start += gap(rng);
        let task = TASK.tokens(rng);
        if rng.random::<f64>() < PLAIN_SHARE {
            let answer_tokens = ANSWER.tokens(rng);
            return Sketch { arrival, prompt_tokens: task, answer_tokens, text: vec![(own, 0)] };
        }
        let kind = rng.random_range(0..INSTRUCTION_TOKENS.len());
        let instructions = INSTRUCTION_TOKENS[kind];
        let text = vec![(kind as u64, 0), (own, instructions)];
        let answer_tokens = STEP.tokens(rng);
        Sketch { arrival, prompt_tokens: instructions + task, answer_tokens, text }
    }

    /// The next step of an agent: all previous text, and the tool's output.
    fn follow(&mut self, step: &Sketch) -> Sketch {
        let rng = &mut self.rng;
        let arrival = step.arrival + Duration::from_secs_f64(STEP_GAP_SECS.sample(rng));
        let prompt_tokens = step.prompt_tokens + step.answer_tokens + TOOL_OUTPUT.tokens(rng);
        let answer_tokens = STEP.tokens(rng);
        Sketch { arrival, prompt_tokens, answer_tokens, text: step.text.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ask_about_the_same_document() {
        let all = documents(3, 500);
        assert_eq!(all, documents(3, 500));
        assert!(all.is_sorted_by_key(|at| at.arrival));
        assert!(all.iter().all(|at| at.text[0] == (0, 0) && at.prompt_tokens > DOCUMENT_TOKENS));
        let own: std::collections::BTreeSet<_> = all.iter().map(|at| at.text[1].0).collect();
        assert_eq!(own.len(), 500);
    }

    #[test]
    fn prefixes_are_shared_evenly() {
        let all = prefixes(3, 2_400);
        let mut counts = [0; PREFIXES.0];
        all.iter().for_each(|at| counts[at.text[0].0 as usize] += 1);
        assert!(counts.iter().all(|count| (60..160).contains(count)), "{counts:?}");
        assert!(all.iter().all(|at| at.text[1].1 == PREFIXES.1 && at.prompt_tokens > PREFIXES.1));
    }

    #[test]
    fn paced_sessions_take_their_turns() {
        let all = paced(3, 10_000);
        let (sessions, turns) = PACED_SESSIONS;
        assert_eq!((all.len(), &all[..50]), (sessions * turns, &*paced(3, 50)));
        let mut lengths = std::collections::BTreeMap::<u64, Vec<usize>>::new();
        all.iter().for_each(|at| lengths.entry(at.text[1].0).or_default().push(at.prompt_tokens));
        assert_eq!(lengths.len(), sessions);
        assert!(lengths.values().all(|at| at.len() == turns && at.is_sorted()), "{lengths:?}");
        assert!(all.windows(2).all(|at| at[1].arrival - at[0].arrival == Duration::from_secs(10)));
    }

    #[test]
    fn agents_go_on_where_they_were() {
        let all = agents(3, 3_000);
        assert!(all.is_sorted_by_key(|at| at.arrival));
        let plain = all.iter().filter(|at| at.text.len() == 1).count();
        assert!((60..400).contains(&plain), "{plain} plain ones");
        let mut lengths = std::collections::BTreeMap::<u64, usize>::new();
        for step in all.iter().filter(|at| at.text.len() > 1) {
            let before = lengths.insert(step.text[1].0, step.prompt_tokens);
            assert!(before.is_none_or(|before| before < step.prompt_tokens), "{step:?}");
            assert!(step.prompt_tokens <= AGENT_PROMPT_TOKENS_MAX);
        }
        assert!(lengths.len() * 4 < 3_000 - plain, "{} agents", lengths.len());
    }
}
