use super::super::fixtures_test::{SMALL, job, play, times};
use super::super::job::PeerFetch;
use super::super::model::TransferModel;
use super::*;
use kvasir_proto::types::Tier;
use proptest::prelude::*;

#[test]
fn one_request_takes_a_step_and_its_tokens() {
    let jobs = [(5, job(1, 1, 10, 1))];
    let out = play(&mut Engine::new(SMALL), &jobs);
    assert_eq!(times(&out)[&0], (5 + 1_000 + 10 * 10, 1_105, 0));
    let jobs = [(0, job(1, 1, 10, 3))];
    let mut engine = Engine::new(SMALL);
    // Two steps for the answer's other tokens, with 10 and 11 tokens of context.
    let end = 1_100 + (1_000 + 100 + 10) + (1_000 + 100 + 11);
    assert_eq!(times(&play(&mut engine, &jobs))[&0], (1_100, end, 0));
    assert_eq!(engine.computed_tokens(), 12);
}

#[test]
fn a_cached_prefix_shortens_it() {
    let jobs = [(0, job(1, 1, 12, 1)), (10_000, job(1, 2, 12, 1)), (20_000, job(2, 3, 12, 1))];
    let times = times(&play(&mut Engine::new(SMALL), &jobs));
    assert_eq!(times[&0].0, 1_120);
    // The last token is always computed, and so is its block; 8 tokens are read.
    assert_eq!((times[&1].0 - 10_000, times[&1].2), (1_000 + 4 * 10 + 8, 8));
    assert_eq!((times[&2].0 - 20_000, times[&2].2), (1_120, 0));
}

#[test]
fn two_prompts_queue() {
    let jobs = [(0, job(1, 1, 16, 1)), (0, job(2, 2, 8, 1)), (0, job(3, 3, 8, 1))];
    let times = times(&play(&mut Engine::new(SMALL), &jobs));
    assert_eq!(times[&0].0, 1_160);
    // Both fit into the next step.
    assert_eq!((times[&1].0, times[&2].0), (1_160 + 1_160, 2_320));
}

#[test]
fn a_long_prompt_in_chunks_lets_answers_go_on() {
    let jobs = [(0, job(1, 1, 4, 5)), (100, job(2, 2, 40, 1))];
    let times = times(&play(&mut Engine::new(SMALL), &jobs));
    let first = 1_000 + 40;
    // The answer takes one of a step's 16 tokens: chunks of 15, 15 and 10.
    let chunks = [(15, 4), (15, 5 + 15), (10, 6 + 30)];
    let long = chunks.iter().map(|(tokens, context)| 1_100 + 10 * tokens + context).sum::<u64>();
    assert_eq!((times[&0].0, times[&1].0), (first, first + long));
    assert_eq!(times[&0].1, first + long + 1_100 + 7, "one token a step all along");
}

#[test]
fn who_has_no_room_waits_until_another_one_ends() {
    let options = EngineOptions { capacity_blocks: 5, ..SMALL };
    let jobs = [(0, job(1, 1, 12, 5)), (0, job(2, 2, 8, 1))];
    let times = times(&play(&mut Engine::new(options), &jobs));
    assert_eq!(times[&1].0, times[&0].1 + 1_080);
}

#[test]
fn a_request_that_comes_in_the_midst_of_quiet_steps_waits_for_one_of_them() {
    let jobs = [(0, job(1, 1, 4, 20)), (3_500, job(2, 2, 4, 1))];
    let ends = [1_040, 1_040 + 1_104, 2_144 + 1_105, 3_249 + 1_106];
    let times = times(&play(&mut Engine::new(SMALL), &jobs));
    assert_eq!(times[&1].0, ends[3] + 1_000 + 100 + 40 + 7);
}

proptest! {
    #[test]
    fn steps_at_once_equal_steps_one_by_one(
        requests in prop::collection::vec((0..4_000_u64, 0..4_u64, 1..70_usize, 1..50_usize), 1..30),
        capacity_blocks in 30..100_usize,
        (host_blocks, disk_blocks) in (0..60_usize, 0..60_usize),
    ) {
        let mut now = 0;
        let jobs: Vec<_> = requests.iter().zip(0..).map(|(&(gap, family, prompt, answer), own)| {
            now += gap;
            (now, job(family, own, prompt, answer))
        }).collect();
        let options = EngineOptions { capacity_blocks, host_blocks, disk_blocks, ..SMALL };
        let mut fast = Engine::new(options);
        let mut slow = Engine::new(options).stepping();
        let fast_out = play(&mut fast, &jobs);
        let slow_out = play(&mut slow, &jobs);
        prop_assert_eq!(times(&fast_out).len(), jobs.len());
        prop_assert_eq!(fast_out, slow_out);
        prop_assert_eq!(fast.computed_tokens(), slow.computed_tokens());
        prop_assert_eq!(fast.contents(), slow.contents());
    }
}

/// A transfer takes 500 ns, and 10 per token.
const TRANSFER: TransferModel = TransferModel { begin: 500, token: 10 };

fn remote() -> Terms {
    Terms { transfer: Some(TRANSFER), ..Terms::default() }
}

/// Names announced as stored and as removed, with their times, in order.
fn changes(out: &[Timed]) -> Vec<(Nanos, Vec<CacheChange>)> {
    let changes = out.iter().filter_map(|timed| match &timed.event {
        Event::Cache(changes) => Some((timed.at, changes.clone())),
        Event::FirstToken { .. } | Event::Finished { .. } => None,
    });
    changes.collect()
}

#[test]
fn a_transferred_prompt_is_cached_when_it_is_here_and_costs_one_token() {
    let job = job(1, 1, 12, 2);
    let mut engine = Engine::new(SMALL);
    let mut out = Vec::new();
    engine.submit_with(0, &job, remote(), 0, &mut out);
    let here = 500 + 11 * 10;
    engine.run_until(here - 1, &mut out);
    assert_eq!((changes(&out), engine.contents().len(), engine.waiting()), (vec![], 0, 1));
    engine.run_until(here, &mut out);
    // Blocks 0 and 1 arrived completely; block 2 is complete with the last token, which is computed.
    assert_eq!(engine.contents().len(), 3);
    engine.run_until(Nanos::MAX, &mut out);
    engine.validate();
    let first = here + 1_000 + 10 + 11;
    assert_eq!(times(&out)[&0], (first, first + 1_000 + 100 + 12, 0));
    assert_eq!(engine.computed_tokens(), 2);
    let stored = |first, count: usize, parent| CacheChange::Stored {
        tier: Tier::Device,
        id: 0,
        first,
        names: job.names[first..first + count].to_vec(),
        parent,
    };
    let expected = vec![stored(0, 2, None), stored(2, 1, Some(job.names[1]))];
    assert_eq!(changes(&out), [(here, expected)]);
}

#[test]
fn what_is_cached_is_not_transferred() {
    let first = job(1, 1, 12, 1);
    let second = job(1, 2, 12, 1);
    let mut engine = Engine::new(SMALL);
    let mut out = Vec::new();
    engine.submit(0, &first, 0, &mut out);
    engine.run_until(10_000, &mut out);
    engine.submit_with(1, &second, remote(), 10_000, &mut out);
    engine.run_until(Nanos::MAX, &mut out);
    // Two blocks are cached; three tokens come, the last one is computed.
    let here = 10_000 + 500 + 30;
    assert_eq!(times(&out)[&1], (here + 1_000 + 10 + 11, here + 1_021, 8));
}

#[test]
fn others_run_while_a_transfer_goes_on() {
    let far = job(1, 1, 12, 1);
    let near = job(2, 2, 4, 1);
    let mut engine = Engine::new(SMALL);
    let mut out = Vec::new();
    engine.submit_with(0, &far, remote(), 0, &mut out);
    engine.submit(1, &near, 100, &mut out);
    engine.run_until(Nanos::MAX, &mut out);
    let near_end = 100 + 1_040;
    assert_eq!(times(&out)[&1].0, near_end);
    assert_eq!(times(&out)[&0].0, near_end + 1_000 + 10 + 11, "the step after the transfer");
}

/// Fetched blocks arrive in host memory, and the rest is computed, while other requests run.
#[test]
fn what_other_engines_have_is_fetched_and_the_rest_computed() {
    let took = |blocks| {
        let far = job(1, 1, 16, 1);
        let near = job(2, 2, 4, 1);
        let mut engine = Engine::new(SMALL);
        let mut out = Vec::new();
        let fetch = Some(PeerFetch { blocks, at: 700 });
        engine.submit_with(0, &far, Terms { fetch, ..Terms::default() }, 0, &mut out);
        engine.validate();
        engine.submit(1, &near, 100, &mut out);
        engine.run_until(Nanos::MAX, &mut out);
        engine.validate();
        assert_eq!(times(&out)[&1].0, 100 + 1_040, "it does not wait for the fetch");
        let (first, _, hits) = times(&out)[&0];
        assert_eq!(engine.computed_tokens() as usize, 16 - hits + 4);
        (first - 1_140, hits)
    };
    assert_eq!(took(2), (1_000 + 8 * 10 + 8 + 8 * 2, 8));
    // The last token is always computed, and so is its block.
    assert_eq!(took(9), (1_000 + 4 * 10 + 12 + 12 * 2, 12));

    // Blocks cached here meanwhile need no wait.
    let first = job(1, 1, 16, 1);
    let again = job(1, 2, 16, 1);
    let mut engine = Engine::new(SMALL);
    let mut out = Vec::new();
    engine.submit(0, &first, 0, &mut out);
    engine.run_until(10_000, &mut out);
    let fetch = Some(PeerFetch { blocks: 3, at: 90_000 });
    engine.submit_with(1, &again, Terms { fetch, ..Terms::default() }, 10_000, &mut out);
    engine.run_until(Nanos::MAX, &mut out);
    engine.validate();
    assert_eq!(times(&out)[&1], (11_052, 11_052, 12));
}

#[test]
fn a_prompt_alone_ends_with_its_first_token() {
    let job = job(1, 1, 10, 5);
    let mut engine = Engine::new(SMALL);
    let mut out = Vec::new();
    let terms = Terms { is_prompt_only: true, ..Terms::default() };
    engine.submit_with(0, &job, terms, 5, &mut out);
    assert_eq!((engine.residual(300), engine.used_blocks()), (1_105 - 300, 3));
    engine.run_until(Nanos::MAX, &mut out);
    engine.validate();
    assert_eq!(times(&out)[&0], (1_105, 1_105, 0));
    assert!(out.contains(&Timed { at: 1_105, event: Event::FirstToken { id: 0, begun: 5 } }));
    assert_eq!((engine.computed_tokens(), engine.residual(2_000)), (10, 0));
}

#[test]
fn what_device_memory_lost_is_fetched_from_below() {
    // The second request evicts the first one's blocks; the lower tiers keep as many as fit.
    let jobs = [(0, job(1, 1, 16, 1)), (10_000, job(2, 2, 16, 1)), (20_000, job(1, 3, 16, 1))];
    let took = |host_blocks, disk_blocks| {
        let options = EngineOptions { capacity_blocks: 4, host_blocks, disk_blocks, ..SMALL };
        let (at, _, hits) = times(&play(&mut Engine::new(options), &jobs))[&2];
        (at - 20_000, hits)
    };
    assert_eq!(took(0, 0), (1_160, 0));
    // The last token is always computed, and so is its block; 12 tokens are read.
    assert_eq!(took(8, 8), (1_000 + 4 * 10 + 12 + 12 * 2, 12));
    assert_eq!(took(0, 8), (1_000 + 4 * 10 + 12 + 12 * 5, 12));
    // Host memory keeps two of the first request's blocks beside the second one's four.
    assert_eq!(took(6, 8), (1_000 + 4 * 10 + 12 + 8 * 2 + 4 * 5, 12));
}

#[test]
fn an_emptied_cache_is_empty_in_all_tiers() {
    let options = EngineOptions { host_blocks: 8, disk_blocks: 8, ..SMALL };
    let first = job(1, 1, 16, 1);
    let again = job(1, 2, 16, 1);
    let mut engine = Engine::new(options);
    let mut out = Vec::new();
    engine.submit(0, &first, 0, &mut out);
    assert!(!engine.reset(), "blocks are in use");
    engine.run_until(10_000, &mut out);
    assert!(engine.reset());
    engine.submit(1, &again, 10_000, &mut out);
    engine.run_until(Nanos::MAX, &mut out);
    assert_eq!(times(&out)[&1], (11_160, 11_160, 0));
}

#[test]
fn held_blocks_stay_in_use_until_they_are_released() {
    let held = job(1, 1, 12, 1);
    let next = job(2, 2, 12, 1);
    let options = EngineOptions { capacity_blocks: 5, ..SMALL };
    let mut engine = Engine::new(options);
    let mut out = Vec::new();
    engine.submit_with(0, &held, Terms { is_held: true, ..Terms::default() }, 0, &mut out);
    engine.run_until(5_000, &mut out);
    assert_eq!((engine.used_blocks(), engine.held(0).map(<[_]>::len)), (3, Some(3)));
    engine.submit(1, &next, 5_000, &mut out);
    engine.run_until(Nanos::MAX - 1, &mut out);
    assert_eq!((engine.waiting(), engine.next()), (1, None), "there is no room");
    assert!(engine.release(0, 50_000, &mut out) && !engine.release(0, 50_000, &mut out));
    engine.run_until(Nanos::MAX, &mut out);
    engine.validate();
    assert_eq!(times(&out)[&1].0, 50_000 + 1_120);
    assert_eq!(engine.used_blocks(), 0);
}

#[test]
fn a_cancelled_request_ends_with_its_step_and_leaves_what_it_computed() {
    let long = job(1, 1, 40, 9);
    let waits = job(2, 2, 8, 1);
    let far = job(3, 3, 8, 1);
    let mut engine = Engine::new(SMALL).stepping();
    let mut out = Vec::new();
    engine.submit(0, &long, 0, &mut out);
    engine.submit(1, &waits, 0, &mut out);
    engine.submit_with(2, &far, remote(), 0, &mut out);
    engine.run_until(1_200, &mut out);
    for id in [0, 1, 2] {
        engine.cancel(id, 1_200, &mut out);
    }
    engine.validate();
    engine.run_until(Nanos::MAX, &mut out);
    engine.validate();
    assert!(times(&out).is_empty(), "no token and no end: {out:?}");
    assert_eq!((engine.requests(), engine.used_blocks()), (0, 0));
    // Two steps of 16 tokens had begun.
    assert_eq!(engine.contents().len(), 8);
}

proptest! {
    /// For any sequence of cancelled, kept and transferred requests: a subscriber that counts copies has the cache's
    /// exact state, and no block leaks.
    #[test]
    fn changes_tell_the_truth(
        requests in prop::collection::vec(
            (0..4_000_u64, 0..4_u64, 1..70_usize, 1..30_usize, any::<bool>(), any::<bool>(), prop::option::of(0..30_usize)),
            1..40,
        ),
        (capacity_blocks, host_blocks, disk_blocks) in (30..60_usize, 0..50_usize, 0..50_usize),
        is_stepping in any::<bool>(),
    ) {
        let jobs: Vec<_> = requests.iter().zip(0..)
            .map(|(at, own)| job(at.1, own, at.2, at.3))
            .collect();
        let options = EngineOptions { capacity_blocks, host_blocks, disk_blocks, ..SMALL };
        let mut engine = Engine::new(options);
        if is_stepping {
            engine = engine.stepping();
        }
        let mut out = Vec::new();
        let mut now = 0;
        for (id, (gap, _, _, _, is_remote, is_held, cancel)) in requests.iter().enumerate() {
            now += gap;
            engine.run_until(now, &mut out);
            let transfer = is_remote.then_some(TRANSFER);
            let terms = Terms { transfer, is_held: *is_held, ..Terms::default() };
            engine.submit_with(id, &jobs[id], terms, now, &mut out);
            if let Some(back) = cancel {
                engine.cancel(id.saturating_sub(*back), now, &mut out);
            }
            engine.validate();
            prop_assert_eq!(counted(&out), engine.contents());
        }
        // A request may wait for blocks that others use.
        for _ in 0..=jobs.len() {
            now += 1_000_000_000;
            engine.run_until(now, &mut out);
            for id in 0..jobs.len() {
                engine.release(id, now, &mut out);
            }
        }
        engine.validate();
        prop_assert_eq!(counted(&out), engine.contents());
        prop_assert_eq!((engine.requests() > 0, engine.used_blocks()), (false, 0));
    }
}

/// The device-memory state of a subscriber that counts copies.
fn counted(out: &[Timed]) -> BTreeMap<u64, u32> {
    let mut counted = BTreeMap::<u64, u32>::new();
    for (_, changes) in changes(out) {
        for change in changes {
            match change {
                CacheChange::Stored { tier: Tier::Device, names, .. } => {
                    names.into_iter().for_each(|name| *counted.entry(name).or_default() += 1);
                }
                CacheChange::Removed { tier: Tier::Device, name, remaining } => {
                    let copies = counted.get_mut(&name).expect("a stored block");
                    *copies -= 1;
                    assert_eq!(*copies, remaining);
                    if remaining == 0 {
                        counted.remove(&name);
                    }
                }
                CacheChange::Stored { .. }
                | CacheChange::Removed { .. }
                | CacheChange::StateStored { .. }
                | CacheChange::StateRemoved { .. } => {}
            }
        }
    }
    counted
}
