use super::*;
use proptest::prelude::*;

const BLOCK: usize = 4;

/// An engine, and the state of a naive subscriber that counts copies.
struct Rig {
    scheduler: Scheduler,
    counted: BTreeMap<(u8, u64), u32>,
    stored: Vec<(u8, usize, usize)>,
    next_id: u64,
    done: BTreeMap<u64, Completion>,
}

impl Rig {
    fn new(capacity_blocks: usize, sliding_window: Option<usize>) -> Self {
        let config =
            SchedulerConfig { block_size: BLOCK, capacity_blocks, sliding_window, name_seed: 1 };
        Self {
            scheduler: Scheduler::new(config),
            counted: BTreeMap::new(),
            stored: Vec::new(),
            next_id: 0,
            done: BTreeMap::new(),
        }
    }

    fn submit(&mut self, tokens: &[u32], answer: &[u32]) -> Result<u64, TooLarge> {
        let id = self.next_id;
        self.next_id += 1;
        let prompt = Prompt { tokens: tokens.to_vec(), answer: answer.to_vec() };
        self.scheduler.submit(id, prompt)?;
        Ok(id)
    }

    fn step(&mut self) {
        let step = self.scheduler.step();
        for event in step.events {
            self.apply(event);
        }
        self.done.extend(step.finished);
        self.scheduler.validate();
        for group in [MAIN_GROUP, WINDOW_GROUP] {
            let counted = self.counted.iter().filter(|((of, _), _)| *of == group);
            let counted: BTreeMap<u64, u32> = counted.map(|(&(_, n), &c)| (n, c)).collect();
            assert_eq!(self.scheduler.contents(group), counted, "group {group}");
        }
    }

    fn apply(&mut self, event: EngineEvent) {
        match event {
            EngineEvent::Stored { group, names, tokens, .. } => {
                self.stored.push((group, names.len(), tokens.len()));
                for name in names {
                    *self.counted.entry((group, name)).or_default() += 1;
                }
            }
            EngineEvent::Removed { group, name, remaining } => {
                let copies = self.counted.get_mut(&(group, name)).expect("a stored block");
                *copies -= 1;
                assert_eq!(*copies, remaining, "copies that remain");
                if *copies == 0 {
                    self.counted.remove(&(group, name));
                }
            }
            EngineEvent::Cleared => self.counted.clear(),
        }
    }

    fn run(&mut self, tokens: &[u32], answer: &[u32]) -> Completion {
        let id = self.submit(tokens, answer).expect("a request that fits");
        self.drain();
        self.done[&id]
    }

    fn drain(&mut self) {
        while !self.scheduler.is_idle() {
            self.step();
        }
    }

    fn copies(&self) -> Vec<u32> {
        self.scheduler.contents(MAIN_GROUP).into_values().collect()
    }
}

fn tokens(range: std::ops::Range<u32>) -> Vec<u32> {
    range.collect()
}

#[test]
fn a_second_turn_hits_prompt_and_answer() {
    let mut rig = Rig::new(100, None);
    let first = rig.run(&tokens(0..10), &tokens(10..15));
    assert_eq!(first, Completion { prompt_tokens: 10, hit_tokens: 0 });
    // 14 tokens were computed; the last token of the answer is not computed.
    assert_eq!(rig.copies(), [1, 1, 1]);
    let second = rig.run(&tokens(0..20), &[]);
    assert_eq!(second, Completion { prompt_tokens: 20, hit_tokens: 12 });
}

#[test]
fn a_completely_cached_prompt_computes_its_last_block_again() {
    let mut rig = Rig::new(100, None);
    rig.run(&tokens(0..8), &[]);
    let again = rig.run(&tokens(0..8), &[]);
    assert_eq!(again.hit_tokens, 4);
    let mut copies = rig.copies();
    copies.sort_unstable();
    assert_eq!(copies, [1, 2]);
    assert_eq!(rig.stored, [(0, 2, 8), (0, 1, 4)]);
}

#[test]
fn a_full_pool_evicts_tails_before_prefixes() {
    let mut rig = Rig::new(4, None);
    rig.run(&tokens(0..12), &[]);
    rig.run(&tokens(100..108), &[]);
    // Four blocks: two new ones took the free block and the tail of the first prompt.
    assert_eq!(rig.run(&tokens(0..12), &[]).hit_tokens, 8);
}

#[test]
fn a_request_waits_until_its_full_length_is_free() {
    let mut rig = Rig::new(4, None);
    let first = rig.submit(&tokens(0..12), &tokens(12..15)).unwrap();
    let second = rig.submit(&tokens(100..112), &[]).unwrap();
    rig.step();
    assert!(!rig.done.contains_key(&second));
    rig.drain();
    assert!(rig.done.contains_key(&first) && rig.done.contains_key(&second));
}

#[test]
fn a_request_that_can_never_fit_is_refused() {
    let mut rig = Rig::new(4, None);
    assert_eq!(rig.submit(&tokens(0..17), &[]), Err(TooLarge { needed: 5, capacity: 4 }));
}

#[test]
fn a_long_prompt_takes_several_steps() {
    let mut rig = Rig::new(3_000, None);
    rig.submit(&tokens(0..10_000), &[]).unwrap();
    rig.step();
    assert_eq!(rig.stored, [(0, 1_024, 4_096)], "1,024 blocks a step");
    rig.drain();
    assert_eq!(rig.copies().len(), 2_500);
}

#[test]
fn requests_side_by_side_compute_second_copies() {
    let mut rig = Rig::new(100, None);
    rig.submit(&tokens(0..5), &tokens(5..14)).unwrap();
    rig.submit(&tokens(0..5), &tokens(5..14)).unwrap();
    rig.drain();
    assert!(rig.copies().contains(&2), "{:?}", rig.copies());
}

#[test]
fn a_reset_waits_for_running_requests() {
    let mut rig = Rig::new(100, None);
    rig.submit(&tokens(0..8), &tokens(0..20)).unwrap();
    rig.step();
    assert!(!rig.scheduler.reset());
    rig.drain();
    assert!(rig.scheduler.reset());
    assert!(rig.scheduler.contents(MAIN_GROUP).is_empty());
}

#[test]
fn the_window_group_keeps_and_announces_the_last_blocks_only() {
    let mut rig = Rig::new(100, Some(8));
    rig.run(&tokens(0..32), &[]);
    // The next token attends to tokens 25..33: blocks 6 and 7.
    assert_eq!(rig.stored, [(0, 8, 32), (1, 2, 32)]);
    assert_eq!(rig.scheduler.contents(WINDOW_GROUP).len(), 2);
}

#[test]
fn a_hit_needs_the_window_in_both_groups() {
    let mut rig = Rig::new(100, Some(8));
    rig.run(&tokens(0..32), &[]);
    assert_eq!(rig.run(&tokens(0..40), &[]).hit_tokens, 32);
    // In the middle of the first prompt, no block of its window is cached: everything is computed again, into second
    // copies.
    let mut middle = tokens(0..16);
    middle.extend(900..908);
    assert_eq!(rig.run(&middle, &[]).hit_tokens, 0);
    assert!(rig.copies().contains(&2));
}

fn workload() -> impl Strategy<Value = Vec<(usize, usize, u32, bool)>> {
    // (prompt length, answer length, where the prompt leaves the common text, step before the next)
    proptest::collection::vec((1..60_usize, 0..20_usize, 0..60_u32, any::<bool>()), 1..40)
}

proptest! {
    /// A subscriber that counts copies and applies events in order has exactly the pool's state after every step, and
    /// no request starves.
    #[test]
    fn events_tell_the_truth(
        capacity in 20..60_usize,
        window in proptest::option::of(1..24_usize),
        requests in workload(),
    ) {
        let capacity = if window.is_some() { 2 * capacity } else { capacity };
        let mut rig = Rig::new(capacity, window);
        let mut submitted = 0;
        for (prompt, answer, leaves, step) in requests {
            let leaves = (leaves as usize).min(prompt);
            let mut text: Vec<u32> = (0..leaves as u32).collect();
            text.resize(prompt + answer, leaves as u32 + 1_000);
            let fits = rig.submit(&text[..prompt], &text[prompt..]).is_ok();
            submitted += usize::from(fits);
            if step {
                rig.step();
            }
        }
        rig.drain();
        prop_assert_eq!(rig.done.len(), submitted);
        prop_assert!(rig.scheduler.reset());
    }
}
