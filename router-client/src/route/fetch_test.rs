use super::*;
use proptest::prelude::*;

const BLOCK: NonZeroU32 = NonZeroU32::new(16).expect("not 0");
/// With 1 MB per block and 1 GB per second, a block takes 1 ms from host memory, and 3 ms from disk.
const BYTES: u64 = 1_000_000;
const KIND: BlockKind = kind(BYTES, 7);

const fn kind(bytes: u64, fingerprint: u64) -> BlockKind {
    BlockKind { bytes: NonZeroU64::new(bytes).expect("not 0"), fingerprint }
}

const GIGABYTE: Rate = Rate { per_second: 1e9, is_measured: true };
/// 16 tokens take 10 ms.
const SLOW: Rate = Rate { per_second: 1_600.0, is_measured: true };

fn holder(worker: usize, host: u32, disk: u32) -> Holder {
    let blocks = TierBlocks { host, disk, ..TierBlocks::default() };
    Holder { candidate: worker, worker, blocks, kind: KIND }
}

fn fetcher(worker: usize, own_blocks: u32) -> Fetcher {
    Fetcher { worker, kind: Some(KIND), own_blocks, prefill: SLOW }
}

fn planner(query_blocks: u32, holders: impl IntoIterator<Item = Holder>) -> FetchPlanner {
    FetchPlanner::new(query_blocks, BLOCK, &TierCredits::default(), GIGABYTE, holders, 0)
}

fn segments(fetch: &Fetch) -> Vec<(usize, u32)> {
    fetch.segments().iter().map(|at| (at.candidate, at.blocks)).collect()
}

#[test]
fn what_another_worker_holds_is_fetched_and_the_rest_computed() {
    let planner = planner(20, [holder(1, 12, 0)]);
    let fetch = planner.plan(&fetcher(0, 4)).expect("8 blocks");
    assert_eq!((fetch.first_block, fetch.blocks), (4, 8));
    assert_eq!(planner.recompute_blocks(&fetch), 8);
    assert_eq!(segments(&fetch), [(1, 8)]);
    assert!((fetch.seconds - 0.010).abs() < 1e-9, "{fetch:?}");
    assert!((fetch.compute_seconds - 0.080).abs() < 1e-9, "{fetch:?}");
    let FetchCost { blocks, tokens } = fetch.cost();
    assert!(blocks == 8 && (tokens - 16.0).abs() < 1e-9, "16 tokens in 10 ms: {tokens}");
}

#[test]
fn reasons_say_why_nothing_is_fetched() {
    let planner = planner(20, [holder(1, 12, 0)]);
    let refused = |by: Fetcher| planner.plan(&by).expect_err("no plan");
    assert_eq!(refused(fetcher(0, 20)), NoFetch::Complete);
    assert_eq!(refused(Fetcher { kind: None, ..fetcher(0, 4) }), NoFetch::NoAgent);
    assert_eq!(refused(fetcher(1, 4)), NoFetch::NoHolder, "never from itself");
    assert_eq!(refused(fetcher(0, 12)), NoFetch::NoHolder, "it holds as much");
    for other in [kind(BYTES, 8), kind(9, 7)] {
        let kind = Some(other);
        assert_eq!(refused(Fetcher { kind, ..fetcher(0, 4) }), NoFetch::NoHolder, "{other:?}");
    }
    let unknown = Fetcher { prefill: Rate::default(), ..fetcher(0, 4) };
    assert_eq!(refused(unknown), NoFetch::UnknownRate);
    // 16 tokens take 2 ms: the fetch saves less than host memory costs afterwards.
    let prefill = Rate { per_second: 8_000.0, is_measured: false };
    assert_eq!(refused(Fetcher { prefill, ..fetcher(0, 4) }), NoFetch::NotFaster);
    let credits = TierCredits::default();
    let still = FetchPlanner::new(20, BLOCK, &credits, Rate::default(), [holder(1, 12, 0)], 0);
    assert_eq!(still.plan(&fetcher(0, 4)), Err(NoFetch::UnknownRate));
}

/// The fastest holder comes first; a slower one with more blocks follows, if that pays.
#[test]
fn several_holders_follow_each_other() {
    let both = planner(40, [holder(1, 0, 30), holder(2, 10, 0), holder(3, 6, 0)]);
    let fetch = both.plan(&fetcher(0, 0)).expect("all");
    assert_eq!(segments(&fetch), [(2, 10), (1, 20)], "{fetch:?}");
    assert!((fetch.seconds - 0.074).abs() < 1e-9, "10 + 3 x 20 ms, and 2 ms twice: {fetch:?}");
    // If computing a block takes 3.6 ms, the disk is too slow.
    let prefill = Rate { per_second: 4_500.0, is_measured: true };
    let fetch = both.plan(&Fetcher { prefill, ..fetcher(0, 0) }).expect("what is in host memory");
    assert_eq!(segments(&fetch), [(2, 10)], "{fetch:?}");
}

#[test]
fn without_a_credit_for_disk_nothing_comes_from_there() {
    let credits = TierCredits { disk: 0.0, ..TierCredits::default() };
    let holders = [holder(1, 0, 30), holder(2, 5, 1)];
    let planner = FetchPlanner::new(40, BLOCK, &credits, GIGABYTE, holders, 0);
    assert_eq!(planner.plan(&fetcher(0, 0)), Err(NoFetch::NotFaster));
}

/// Equal holders share the requests by `turn`.
#[test]
fn equal_holders_take_turns() {
    let first = |turn| {
        let holders = [1, 2, 3].map(|worker| holder(worker, 12, 0));
        let credits = TierCredits::default();
        let planner = FetchPlanner::new(20, BLOCK, &credits, GIGABYTE, holders, turn);
        segments(&planner.plan(&fetcher(0, 0)).expect("a plan"))[0].0
    };
    assert_eq!([0, 1, 2, 3].map(first), [1, 1, 2, 3]);
}

#[test]
fn a_plan_stays_within_the_limits_of_a_call() {
    let most = FETCH_BLOCKS_MAX;
    let long = planner(3 * most, [holder(1, 2 * most, 0)]);
    let fetch = long.plan(&fetcher(0, 10)).expect("a plan");
    assert_eq!((fetch.first_block, fetch.blocks), (10, most));
    // Each holder has one block more than the previous one.
    let steps =
        (1..=12_usize).zip(0_u32..).map(|(at, before)| holder(at, 12 - before, 90 * before));
    let fetch = planner(2_000, steps).plan(&fetcher(0, 0)).expect("a plan");
    assert!(fetch.segments().len() <= PLAN_PEERS_MAX, "{fetch:?}");
    // At most the blocks that arrive in 10 s.
    let by = Fetcher { prefill: Rate { per_second: 1.0, is_measured: true }, ..fetcher(0, 0) };
    let kind = kind(100 * BYTES, 7);
    let large = Holder { kind, ..holder(1, 500, 0) };
    let fetch = planner(500, [large]).plan(&Fetcher { kind: Some(kind), ..by });
    let fetch = fetch.expect("the beginning");
    assert_eq!(fetch.blocks, 99, "{fetch:?}");
}

#[test]
fn bandwidth_is_measured_and_forgotten() {
    let at = Duration::from_secs;
    let config = FetchConfig { bytes_per_second: 7.0, prefill_tokens_per_second: 3.0 };
    let mut meter = FetchMeter::default();
    assert_eq!(config.bandwidth(&meter, at(0)), Rate { per_second: 7.0, is_measured: false });
    meter.measure(0, at(1), at(1));
    meter.measure(1, at(0), at(1));
    assert_eq!(meter, FetchMeter::default(), "these say nothing");
    meter.measure(1_000, at(1), at(1));
    meter.measure(2_000, at(1), at(2));
    let measured = config.bandwidth(&meter, at(62));
    assert!(measured.is_measured && (measured.per_second - 1_200.0).abs() < 1e-9, "{measured:?}");
    assert!(!config.bandwidth(&meter, at(63)).is_measured, "a minute later");
    assert_eq!(config.prefill(Some(5.0)), Rate { per_second: 5.0, is_measured: true });
    for bytes_per_second in [-1.0, f64::NAN, f64::INFINITY] {
        let error = FetchConfig { bytes_per_second, ..config }.check().expect_err("bad");
        assert_eq!(error.setting, "fetch bandwidth");
    }
    assert!(FetchConfig { prefill_tokens_per_second: -1.0, ..config }.check().is_err());
}

prop_compose! {
    fn any_holder()(
        candidate in 0_usize..12,
        host in 0_u32..200,
        disk in 0_u32..200,
        other in prop::option::weighted(0.1, any::<bool>()),
    ) -> Holder {
        let kind = match other {
            None => KIND,
            Some(true) => kind(2 * BYTES, 7),
            Some(false) => kind(BYTES, 8),
        };
        // Workers with two ranks each.
        let blocks = TierBlocks { host, disk, ..TierBlocks::default() };
        Holder { candidate, worker: candidate / 2, blocks, kind }
    }
}

proptest! {
    /// A plan continues the rank's own blocks. It takes from each holder at most the holder's blocks, never from the
    /// rank's own worker or blocks of another kind, and is faster than computing by the margin.
    #[test]
    fn plans_take_what_is_there_and_pay(
        mut holders in prop::collection::vec(any_holder(), 0..20),
        query_blocks in 0_u32..300,
        own_blocks in 0_u32..300,
        worker in 0_usize..6,
        rate in 0.0_f64..50_000.0,
        bandwidth in 0.0_f64..1e10,
        host_credit in 0.0_f64..=1.0,
        disk_credit in 0.0_f64..=1.0,
        turn: usize,
    ) {
        holders.sort_by_key(|at| at.candidate);
        holders.dedup_by_key(|at| at.candidate);
        for at in &mut holders {
            // An index never reports more blocks than the query has.
            at.blocks.host = at.blocks.host.min(query_blocks);
            at.blocks.disk = at.blocks.disk.min(query_blocks - at.blocks.host);
        }
        let credits = TierCredits { host: host_credit, disk: disk_credit, ..TierCredits::default() };
        let bandwidth = Rate { per_second: bandwidth, is_measured: true };
        let planner = FetchPlanner::new(query_blocks, BLOCK, &credits, bandwidth, holders.clone(), turn);
        let prefill = Rate { per_second: rate, is_measured: true };
        let by = Fetcher { prefill, ..fetcher(worker, own_blocks) };
        let useful = |at: &&Holder| {
            let depth = at.blocks.host + at.blocks.disk;
            at.worker != worker && at.kind == KIND && depth > own_blocks
        };
        let Ok(fetch) = planner.plan(&by) else {
            // Then a fetch from any single holder does not pay either.
            if own_blocks < query_blocks && rate > 0.0 && bandwidth.per_second > 0.0 {
                for at in holders.iter().filter(useful).filter(|at| at.blocks.disk == 0) {
                    let blocks = f64::from(at.blocks.host - own_blocks);
                    let compute = blocks * 16.0 / rate;
                    let seconds = 0.002 + blocks * BYTES as f64 / bandwidth.per_second;
                    let fetching = seconds + (1.0 - host_credit) * compute;
                    prop_assert!(seconds > 9.0 || compute < 1.26 * fetching, "{at:?}: {compute} {fetching}");
                }
            }
            return Ok(());
        };
        prop_assert_eq!(fetch.first_block, own_blocks);
        let recompute = planner.recompute_blocks(&fetch);
        prop_assert_eq!(own_blocks + fetch.blocks + recompute, query_blocks);
        prop_assert!((1..=PLAN_PEERS_MAX).contains(&fetch.segments().len()));
        let mut at = own_blocks;
        let mut seconds = 0.0;
        for segment in fetch.segments() {
            let from = holders.iter().find(|at| at.candidate == segment.candidate);
            let from = from.expect("a holder");
            prop_assert!(useful(&from), "{:?}", from);
            at += segment.blocks;
            prop_assert!(segment.blocks > 0 && at <= from.blocks.host + from.blocks.disk);
            // At least the time of these bytes from host memory.
            seconds += f64::from(segment.blocks) * BYTES as f64 / bandwidth.per_second;
        }
        prop_assert_eq!(at, own_blocks + fetch.blocks);
        prop_assert!(fetch.seconds >= seconds && fetch.seconds <= 10.0 + 1e-9);
        let compute = f64::from(fetch.blocks) * 16.0 / rate;
        let fetching = fetch.seconds + (1.0 - host_credit) * compute;
        prop_assert!(compute * 1.000_001 >= FETCH_GAIN_MIN * fetching, "{} {}", compute, fetching);
    }
}
