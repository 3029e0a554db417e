//! Every rule as a script: an input, the resulting steps, and the state after it.
//!
//! Batches are written as life and number, `a5`. `a5*` clears the cache, and `a5!` is unreadable. A capital,
//! `A5`, is the same batch from a publisher that states its life. `reply` and `end` answer the latest round;
//! `reply@1` answers round 1.

mod following;
mod incarnations;
mod numbers;
mod stated;
mod upkeep;

use super::model_test::{fingerprint, stated};
use super::{
    Input, Item, LossPolicy, OutcomeCounts, Received, Sequencer, SequencerConfig, Step,
    incarnation, stated_incarnation,
};
use kvasir_proto::types::{Cursor, Incarnation, SourceStatus};
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Batch(String);

impl Item for Batch {
    fn bytes(&self) -> usize {
        10
    }
}

fn batch(text: &str) -> Received<Batch> {
    let (life, sequence) = text.split_at(1);
    let states = life.as_bytes()[0].is_ascii_uppercase();
    let life = u64::from(life.as_bytes()[0].to_ascii_lowercase());
    let sequence = sequence.trim_end_matches(['*', '!']).parse().unwrap();
    let fingerprint = fingerprint(life, sequence);
    let incarnation = states.then(|| stated(life));
    Received { sequence, fingerprint, incarnation, item: Batch(text.to_owned()) }
}

struct Script {
    sequencer: Sequencer<Batch>,
    now: Duration,
    round: u64,
}

impl Script {
    fn input(&mut self, line: &str) -> Input<Batch> {
        let (word, argument) = line.split_once(' ').unwrap_or((line, ""));
        let round = word.split_once('@').map_or(self.round, |(_, round)| round.parse().unwrap());
        match word.split('@').next().unwrap() {
            "connect" => Input::Connected,
            "disconnect" => Input::Disconnected,
            "live" => Input::Live(batch(argument)),
            "reply" => Input::ReplayReply { round, received: batch(argument) },
            "end" => Input::ReplayEnd { round },
            "fail" => Input::ReplayFailed { round },
            "after" => {
                self.now += Duration::from_secs(argument.parse().unwrap());
                Input::Tick
            }
            // Advances to the sequencer's next deadline.
            "wait" => {
                self.now = self.now.max(self.sequencer.deadline().expect("something is planned"));
                Input::Tick
            }
            other => panic!("no such input: {other}"),
        }
    }

    fn steps(&mut self) -> Vec<String> {
        let mut actual = Vec::new();
        while let Some(step) = self.sequencer.next_step() {
            actual.push(match step {
                Step::Restarted => "restarted".to_owned(),
                Step::NewIncarnation { .. } => "new-life".to_owned(),
                Step::Apply { item: Batch(text), .. } => {
                    if text.ends_with('*') {
                        self.sequencer.content_cleared();
                    }
                    if text.ends_with('!') {
                        self.sequencer.content_lost();
                    }
                    text
                }
                Step::MarkSuspect => "mark".to_owned(),
                Step::ClearLost => "clear-lost".to_owned(),
                Step::DropSuspects => "drop".to_owned(),
                Step::Expired => "expired".to_owned(),
                Step::StartReplay { round, from } => {
                    self.round = round;
                    format!("ask {from}")
                }
                Step::CancelReplay { .. } => "cancel".to_owned(),
            });
        }
        actual
    }
}

/// Runs a script of `(input, "steps | state")`. A repeated input is written `3 x fail`.
fn run(
    config: SequencerConfig,
    resume: Option<&SourceStatus>,
    script: &[(&str, &str)],
) -> OutcomeCounts {
    let sequencer = Sequencer::new(config, resume, Duration::ZERO);
    let mut script_state = Script { sequencer, now: Duration::ZERO, round: 0 };
    script_state.steps();
    for (index, (line, expected)) in script.iter().enumerate() {
        let input = script_state.input(line);
        let now = script_state.now;
        script_state.sequencer.handle(input, now);
        let mut actual = script_state.steps().join(" ");
        if !actual.is_empty() {
            actual.push(' ');
        }
        let status = script_state.sequencer.status();
        let actual = format!("{actual}| {}", status.state);
        assert_eq!(&actual, expected, "line {index}: {line}: {status:?}");
    }
    script_state.sequencer.counts()
}

fn config() -> SequencerConfig {
    SequencerConfig { replay_spread: Duration::ZERO, ..SequencerConfig::default() }
}

fn without_replay() -> SequencerConfig {
    SequencerConfig { replay: false, ..config() }
}

fn at(text: &str) -> SourceStatus {
    let Received { sequence, fingerprint, incarnation, .. } = batch(text);
    let incarnation = incarnation.unwrap_or(Incarnation(1));
    let cursor = Cursor { incarnation, sequence, fingerprint: Some(fingerprint) };
    SourceStatus { applied: Some(cursor), ..SourceStatus::default() }
}

fn check(script: &[(&str, &str)]) -> OutcomeCounts {
    run(config(), None, script)
}

fn check_resumed(resume: &str, script: &[(&str, &str)]) -> OutcomeCounts {
    run(config(), Some(&at(resume)), script)
}

fn counts(applied: u64, duplicate: u64, stale: u64, lost: u64) -> OutcomeCounts {
    OutcomeCounts { applied, duplicate, stale, lost }
}
