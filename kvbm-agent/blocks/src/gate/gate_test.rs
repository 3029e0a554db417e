use super::*;
use crate::tier::BlockTier;

const ROUTE: Route = Route { from: BlockTier::Disk, to: BlockTier::Host };

fn inputs() -> GateInputs {
    GateInputs {
        route: ROUTE,
        load_bytes: 8_000_000,
        queued_bytes: 2_000_000,
        tokens: 1_000,
        prefill_tokens_per_second: 10_000.0,
        prefill_wait: Duration::ZERO,
    }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn what_is_unknown_is_loaded_and_thereby_measured() {
    let mut gate = Gate::new(GateConfig::DEFAULT);
    let verdict = gate.decide(inputs(), at(0));
    assert!(verdict.is_load);
    assert_eq!((verdict.load, verdict.bytes_per_second), (None, None));
    assert_eq!(verdict.compute, Some(Duration::from_millis(100)));
    gate.measure(ROUTE, 50_000_000, at(1), at(0));
    let verdict = gate.decide(inputs(), at(1));
    assert_eq!(verdict.load, Some(Duration::from_millis(200)));
    assert!(!verdict.is_load, "{verdict:?}");
    assert_eq!(verdict.inputs, inputs());
}

/// 10 MB at 50 MB/s take 200 ms; 1,000 tokens at 10,000 a second take 100 ms, and a wait of 100 ms makes it a tie.
#[test]
fn queues_on_both_sides_count() {
    let mut gate = Gate::new(GateConfig::DEFAULT);
    gate.measure(ROUTE, 50_000_000, at(1), at(0));
    let waiting = GateInputs { prefill_wait: Duration::from_millis(100), ..inputs() };
    assert!(gate.decide(waiting, at(0)).is_load);
    let more = GateInputs { queued_bytes: 2_100_000, ..waiting };
    assert!(!gate.decide(more, at(0)).is_load);
    let unqueued = GateInputs { queued_bytes: 0, load_bytes: 5_000_000, ..inputs() };
    assert!(gate.decide(unqueued, at(0)).is_load);
}

#[test]
fn an_engine_of_unknown_speed_loads() {
    let mut gate = Gate::new(GateConfig::DEFAULT);
    gate.measure(ROUTE, 1, at(100), at(0));
    let unknown = GateInputs { prefill_tokens_per_second: 0.0, ..inputs() };
    let verdict = gate.decide(unknown, at(0));
    assert_eq!((verdict.is_load, verdict.compute), (true, None));
}

#[test]
fn the_mean_follows_and_is_forgotten() {
    let mut gate = Gate::new(GateConfig { weight: 0.5, measured_age_max: at(10) });
    gate.measure(ROUTE, 100, at(1), at(0));
    gate.measure(ROUTE, 300, at(1), at(5));
    assert_eq!(gate.bytes_per_second(ROUTE, at(5)), Some(200.0));
    assert_eq!(gate.bytes_per_second(ROUTE, at(15)), Some(200.0));
    assert_eq!(gate.bytes_per_second(ROUTE, at(16)), None);
    let other = Route { from: BlockTier::Host, to: BlockTier::Device };
    assert_eq!(gate.bytes_per_second(other, at(5)), None);
}

#[test]
fn measurements_of_nothing_say_nothing() {
    let mut gate = Gate::new(GateConfig::DEFAULT);
    gate.measure(ROUTE, 0, at(1), at(0));
    gate.measure(ROUTE, 1, Duration::ZERO, at(0));
    assert_eq!(gate.bytes_per_second(ROUTE, at(0)), None);
}

/// If the bandwidth is so low that the time overflows, the time is capped.
#[test]
fn extremes_do_not_panic() {
    let mut gate = Gate::new(GateConfig::DEFAULT);
    gate.measure(ROUTE, 1, Duration::MAX, at(0));
    let huge = GateInputs { load_bytes: u64::MAX, tokens: u64::MAX, ..inputs() };
    let verdict = gate.decide(huge, at(0));
    assert_eq!(verdict.load, Some(Duration::MAX));
    assert!(!verdict.is_load);
}
