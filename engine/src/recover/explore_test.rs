//! Explores every interleaving of a few actions, up to a depth, and checks the result after each.

use super::agent_test::Kind;
use super::model_test::World;
use super::{Recourse, RecoveryConfig};
use std::thread;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Publish,
    PublishUnseen,
    Announce,
    Restart,
    DeliverFirst,
    DeliverLast,
    DeliverReply,
    BreakRound,
    Wait,
}

const ALL: [Action; 9] = [
    Action::Publish,
    Action::PublishUnseen,
    Action::Announce,
    Action::Restart,
    Action::DeliverFirst,
    Action::DeliverLast,
    Action::DeliverReply,
    Action::BreakRound,
    Action::Wait,
];

/// Executes `action`, if it is possible in this state. Returns whether it was.
fn act(world: &mut World, action: Action) -> bool {
    match action {
        Action::Publish => world.publish(Kind::Add(1), true),
        Action::PublishUnseen => world.publish(Kind::Add(2), false),
        Action::Announce => world.announce(),
        Action::Restart if world.newest().is_some() => world.restart(5),
        Action::DeliverFirst if !world.sent.is_empty() => world.deliver(0),
        Action::DeliverLast if world.sent.len() > 1 => world.deliver(world.sent.len() - 1),
        Action::DeliverReply if world.has_round() => world.deliver_reply(0),
        Action::BreakRound if world.has_round() => world.break_round(),
        Action::Wait if !world.has_round() => return world.advance_to_deadline(Duration::MAX / 2),
        Action::Restart
        | Action::DeliverFirst
        | Action::DeliverLast
        | Action::DeliverReply
        | Action::BreakRound
        | Action::Wait => return false,
    }
    true
}

struct Explorer {
    path: Vec<Action>,
    ends: u64,
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
            world.check_exact_is_true();
            world.check_quiet();
            self.ends += 1;
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

fn check(config: RecoveryConfig, journal_max: usize, depth: usize) {
    let mut explorer = Explorer { path: Vec::new(), ends: 0 };
    explorer.explore(&World::new(config, journal_max), depth);
    println!("{} paths of {depth}", explorer.ends);
    assert!(explorer.ends > 1_000);
}

#[test]
fn every_short_history_is_recovered_from_the_journal() {
    check(RecoveryConfig::default(), usize::MAX, 7);
}

#[test]
fn every_short_history_is_recovered_from_dumps() {
    check(RecoveryConfig::default(), 1, 7);
}

#[test]
fn every_short_history_is_recovered_after_losses() {
    check(RecoveryConfig { attempts_max: 1, ..RecoveryConfig::default() }, 1, 7);
}

#[test]
fn every_short_history_is_sent_again_where_nobody_can_be_asked() {
    check(RecoveryConfig { recourse: Recourse::Rewind, ..RecoveryConfig::default() }, 1, 7);
}
