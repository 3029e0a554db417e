use super::*;
use crate::workload::Profile;

const SEED: u64 = 1;

fn profile(seed: u64, requests: usize) -> Profile {
    let mut profile = Profile::new(512);
    for request in Conversations::new(seed).take(requests) {
        profile.record(&request);
    }
    profile
}

#[track_caller]
fn check_near(what: &str, seed: u64, actual: f64, expected: f64, tolerance: f64) {
    let off = (actual - expected).abs() / expected;
    assert!(off <= tolerance, "seed {seed}: {what} is {actual:.3}, not near {expected}");
}

#[test]
fn statistics_are_those_of_the_published_trace() {
    for seed in [SEED, 2, 3] {
        let profile = profile(seed, 12_031);
        check_near("mean prompt", seed, profile.mean_prompt_tokens(), 12_035.0, 0.10);
        check_near("mean answer", seed, profile.mean_answer_tokens(), 343.0, 0.05);
        check_near("mean gap", seed, profile.mean_gap_secs(), 0.294, 0.05);
        check_near("prefix reuse", seed, profile.reuse_share(), 0.366, 0.10);
    }
}

#[test]
fn shares_of_turns_are_those_of_the_published_trace() {
    let mut conversations = Conversations::new(SEED);
    let turns: Vec<Turn> = (0..12_031).map(|_| conversations.next_turn()).collect();
    let count = |kind| turns.iter().filter(|turn| turn.kind == kind).count() as f64;
    let following = turns.len() as f64 - count(TurnKind::First);
    check_near("following turns", SEED, following / turns.len() as f64, 0.387, 0.05);
    check_near("edits", SEED, count(TurnKind::Edit) / following, 0.152, 0.10);
    check_near("repetitions", SEED, count(TurnKind::Repeat) / following, 0.025, 0.25);
}

#[test]
fn the_same_seed_gives_the_same_requests() {
    let requests = |seed| Conversations::new(seed).take(50).collect::<Vec<_>>();
    assert_eq!(requests(SEED), requests(SEED));
    assert_ne!(requests(SEED), requests(SEED + 1));
}

#[test]
fn arrivals_never_go_back() {
    let mut conversations = Conversations::new(SEED);
    let mut now = Duration::ZERO;
    for _ in 0..5_000 {
        let turn = conversations.next_turn();
        assert!(turn.arrival >= now, "seed {SEED}");
        now = turn.arrival;
    }
}

#[test]
fn a_turn_shares_a_prefix_according_to_its_kind() {
    let mut conversations = Conversations::new(SEED);
    let mut before = std::collections::HashMap::<u64, Request>::new();
    let mut seen = std::collections::BTreeMap::<TurnKind, usize>::new();
    for _ in 0..2_000 {
        let turn = conversations.next_turn();
        let request = conversations.request(&turn);
        assert_eq!(request.prompt.len(), turn.prompt_tokens);
        assert_eq!(request.answer.len(), turn.answer_tokens);
        let history = before.get(&turn.conversation).map(|before| {
            before.prompt.iter().chain(&before.answer).copied().collect::<Vec<u32>>()
        });
        let history = history.unwrap_or_default();
        let shared = history.iter().zip(&request.prompt).take_while(|(a, b)| a == b).count();
        match turn.kind {
            TurnKind::First => assert!(history.is_empty(), "seed {SEED}: {turn:?}"),
            TurnKind::Next => assert_eq!(shared, history.len(), "seed {SEED}: {turn:?}"),
            TurnKind::Repeat => assert_eq!(shared, request.prompt.len(), "seed {SEED}: {turn:?}"),
            TurnKind::Edit => assert!(
                (SYSTEM_TOKENS..request.prompt.len()).contains(&shared),
                "seed {SEED}: {turn:?}"
            ),
        }
        *seen.entry(turn.kind).or_default() += 1;
        before.insert(turn.conversation, request);
    }
    assert!(seen.len() == 4 && seen.values().all(|&count| count > 5), "{seen:?}");
}

#[test]
fn every_prompt_starts_with_the_system_prompt() {
    let prompts = Conversations::new(SEED).take(20).collect::<Vec<_>>();
    for request in &prompts {
        assert_eq!(request.prompt[..SYSTEM_TOKENS], prompts[0].prompt[..SYSTEM_TOKENS]);
    }
}
