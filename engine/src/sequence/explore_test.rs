//! Explores every interleaving of a few actions, up to a depth, and checks the result after each.

use super::SequencerConfig;
use super::model_test::{Kind, Statement, World};
use kvasir_proto::types::SourceState;
use std::thread;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Publish,
    PublishUnseen,
    Restart,
    ConnectOrBreak,
    DeliverLive,
    DeliverReply,
    DropReply,
    BreakReplay,
    Wait,
}

const ALL: [Action; 9] = [
    Action::Publish,
    Action::PublishUnseen,
    Action::Restart,
    Action::ConnectOrBreak,
    Action::DeliverLive,
    Action::DeliverReply,
    Action::DropReply,
    Action::BreakReplay,
    Action::Wait,
];

/// Executes `action`, if it is possible in this state. Returns whether it was.
fn act(world: &mut World, action: Action) -> bool {
    match action {
        Action::Publish if world.is_subscribed() => world.publish(Kind::Store, true),
        Action::PublishUnseen => world.publish(Kind::Store, false),
        Action::Restart if world.newest().is_some() => world.restart(),
        Action::ConnectOrBreak if world.is_subscribed() => world.disconnect(),
        Action::ConnectOrBreak => world.connect(),
        Action::DeliverLive if world.has_live() => world.deliver_live(),
        Action::DeliverReply if world.has_round() => world.deliver_reply(),
        Action::DropReply if world.has_round() => return world.drop_reply(false),
        Action::BreakReplay if world.has_round() => world.break_replay(),
        Action::Wait if !world.has_round() => return world.advance_to_deadline(Duration::MAX / 2),
        Action::Publish
        | Action::Restart
        | Action::DeliverLive
        | Action::DeliverReply
        | Action::DropReply
        | Action::BreakReplay
        | Action::Wait => return false,
    }
    true
}

struct Explorer {
    path: Vec<Action>,
    ends: u64,
    exact: u64,
    must_be_exact: bool,
}

impl Drop for Explorer {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("path: {:?}", self.path);
        }
    }
}

impl Explorer {
    fn explore(&mut self, world: &World, depth: usize) {
        if depth == 0 {
            let mut world = world.clone();
            world.quiesce();
            let state = world.check_quiet();
            self.ends += 1;
            self.exact += u64::from(state == SourceState::Exact);
            assert!(state == SourceState::Exact || !self.must_be_exact);
            return;
        }
        for action in ALL {
            let mut next = world.clone();
            self.path.push(action);
            if act(&mut next, action) {
                next.check_exact_is_true();
                self.explore(&next, depth - 1);
            }
            self.path.pop();
        }
    }
}

/// Explores all paths of `depth` actions. Returns the number of paths, and how many end exact.
fn check(
    config: SequencerConfig,
    ring_max: usize,
    depth: usize,
    must_be_exact: bool,
) -> (u64, u64) {
    check_stated(Statement::Never, config, ring_max, depth, must_be_exact)
}

fn check_stated(
    statement: Statement,
    config: SequencerConfig,
    ring_max: usize,
    depth: usize,
    must_be_exact: bool,
) -> (u64, u64) {
    let mut explorer = Explorer { path: Vec::new(), ends: 0, exact: 0, must_be_exact };
    let mut world = World::new(config, ring_max);
    world.statement = statement;
    explorer.explore(&world, depth);
    println!("{} paths of {depth}, {} exact", explorer.ends, explorer.exact);
    (explorer.ends, explorer.exact)
}

#[test]
fn every_short_history_that_can_be_recovered_is() {
    let config = SequencerConfig { replay_attempts_max: 20, ..SequencerConfig::default() };
    check(config, usize::MAX, 8, true);
}

#[test]
fn every_short_history_of_a_forgetful_publisher_ends_honest() {
    let config = SequencerConfig { replay_attempts_max: 2, ..SequencerConfig::default() };
    let (paths, exact) = check(config, 1, 8, false);
    assert!(exact > 0 && exact < paths);
}

#[test]
fn every_short_history_without_replay_ends_honest() {
    let config = SequencerConfig { replay: false, ..SequencerConfig::default() };
    let (paths, exact) = check(config, usize::MAX, 9, false);
    assert!(exact > 0 && exact < paths);
}

/// These histories cover the cases of longer ones: one step less than without statements.
#[test]
fn every_short_history_of_a_publisher_that_states_its_incarnation_ends_honest() {
    let patient = SequencerConfig { replay_attempts_max: 20, ..SequencerConfig::default() };
    let hasty = SequencerConfig { replay_attempts_max: 2, ..SequencerConfig::default() };
    let live_only = SequencerConfig { replay: false, ..SequencerConfig::default() };
    for statement in [Statement::Always, Statement::EverySecond, Statement::LiveOnly] {
        check_stated(statement, patient, usize::MAX, 7, true);
        check_stated(statement, hasty, 1, 7, false);
        check_stated(statement, live_only, usize::MAX, 8, false);
    }
}
