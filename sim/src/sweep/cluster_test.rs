use super::super::figures::Figures;
use super::super::job::{Source, faster, generated};
use super::super::options::{ClusterOptions, SYNC_NANOS};
use super::super::way::Policy;
use super::*;
use crate::engine::timed::{EngineOptions, StepModel};
use router_client::route::{
    BlockKind, CostConfig, FetchPlanner, Fetcher, Holder, Rate, TierBlocks,
};
use std::num::NonZeroU64;

const BLOCK: usize = 64;

fn options() -> ClusterOptions {
    let engine = EngineOptions {
        model: StepModel::default(),
        block_size: BLOCK,
        // Small enough that engines evict.
        capacity_blocks: 2_500,
        host_blocks: 0,
        disk_blocks: 0,
        state_slots: 0,
        step_tokens_max: 8_192,
        running_max: 256,
    };
    let cost = CostConfig::default();
    let sync_delay = SYNC_NANOS;
    let transfer = TransferModel::default();
    ClusterOptions { engines: 4, engine, cost, sync_delay, transfer, states_capacity: true }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let jobs = generated(3, 150, BLOCK);
    let arrivals = faster(&jobs, 2.0);
    let run =
        |seed| run(&options(), &jobs, &arrivals, Way::of(Policy::PowerOfTwo), seed).expect("a run");
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn the_oracle_is_not_slower_than_chance() {
    for seed in [1, 2, 3] {
        let jobs = generated(seed, 200, BLOCK);
        let arrivals = faster(&jobs, 2.0);
        let mean = |policy| {
            let run = run(&options(), &jobs, &arrivals, Way::of(policy), seed).expect("a run");
            Figures::of(&run).ttft_mean
        };
        let oracle = mean(Policy::Oracle);
        let random = mean(Policy::Random);
        assert!(oracle <= random, "seed {seed}: {oracle} s, {random} s by chance");
    }
}

#[test]
fn each_request_is_served_once_and_in_order() {
    let jobs = generated(5, 150, BLOCK);
    let arrivals = faster(&jobs, 4.0);
    let kv = Way::of(Policy::Kv);
    let others = [Policy::RoundRobin, Policy::Random, Policy::LeastLoaded, Policy::PowerOfTwo];
    let others = others.into_iter().chain([Policy::Oracle]).map(Way::of);
    let replicas = Way { routers: 3, has_kill: true, ..kv };
    let fetching = Way::of(Policy::KvFetch);
    let of_two_roles = Way { prefill_engines: 2, ..fetching };
    assert!(run(&options(), &jobs, &arrivals, of_two_roles, 1).is_ok());
    for way in others.chain([kv, Way { staleness: 0, ..kv }, replicas, fetching]) {
        let run = run(&options(), &jobs, &arrivals, way, 1).expect("a run");
        assert_eq!(run.served.len(), jobs.len());
        for (served, (job, &arrival)) in run.served.iter().zip(jobs.iter().zip(&arrivals)) {
            assert_eq!((served.arrival, served.prompt_tokens), (arrival, job.prompt_tokens));
            assert!(served.arrival < served.first_token && served.first_token <= served.end);
            assert!(served.hit_tokens < served.prompt_tokens);
        }
        let tokens = |at: &Served| at.prompt_tokens - at.hit_tokens + at.answer_tokens - 1;
        let computed: usize = run.served.iter().map(tokens).sum();
        assert_eq!(computed as u64, run.computed_tokens.iter().sum::<u64>(), "{way}");
    }
}

/// Sessions with one request at a time are spread over engines, with as many cache hits as on a single engine.
#[test]
fn paced_sessions_are_spread() {
    for seed in [1, 2] {
        let jobs = Source::Paced.jobs(seed, 1_600, BLOCK);
        let arrivals = faster(&jobs, 1.0);
        let figures = |engines| {
            let options = ClusterOptions { engines, ..options() };
            let run = run(&options, &jobs, &arrivals, Way::of(Policy::Kv), seed).expect("a run");
            Figures::of(&run)
        };
        let all_at_one = figures(1);
        let two = figures(2);
        let eight = figures(8);
        for spread in [two, eight] {
            assert!(spread.imbalance <= 1.5, "seed {seed}: {spread:?}");
            assert!(spread.hit_ratio >= 0.98 * all_at_one.hit_ratio, "seed {seed}: {spread:?}");
        }
    }
}

/// Engines need not state their number of blocks: 24 prefixes share two engines that have room for half of them each.
#[test]
fn prefixes_stay_where_they_are_without_stated_capacities() {
    for seed in [1, 2] {
        let jobs = Source::Prefixes.jobs(seed, 800, BLOCK);
        let arrivals = faster(&jobs, 60.0);
        let engine = EngineOptions { capacity_blocks: 344, ..options().engine };
        let options = ClusterOptions { engines: 2, engine, ..options() };
        let figures =
            |way| Figures::of(&run(&options, &jobs, &arrivals, way, seed).expect("a run"));
        let kv = Way::of(Policy::Kv);
        let stated = figures(kv);
        let unstated = figures(Way { is_unstated: true, ..kv });
        let in_turn = figures(Way::of(Policy::RoundRobin));
        assert!(unstated.hit_ratio > stated.hit_ratio - 0.02, "{unstated:?}, {stated:?}");
        assert!(unstated.hit_ratio > in_turn.hit_ratio + 0.1, "{unstated:?}, {in_turn:?}");
        assert!(unstated.ttft_mean < in_turn.ttft_mean, "{unstated:?}, {in_turn:?}");
    }
}

/// Engines with state layers resume a prompt only at a state. Full attention alone promises more than they reuse.
#[test]
fn states_are_counted_where_engines_have_them() {
    let (mut all_groups, mut main_group) = (0.0, 0.0);
    for seed in [1, 2] {
        let jobs = generated(seed, 600, BLOCK);
        let arrivals = faster(&jobs, 2.0);
        let engine = EngineOptions { state_slots: 60, ..options().engine };
        let options = ClusterOptions { engine, ..options() };
        let figures = |policy| {
            Figures::of(&run(&options, &jobs, &arrivals, Way::of(policy), seed).expect("a run"))
        };
        let kv = figures(Policy::Kv);
        all_groups += kv.misjudged_ratio;
        main_group += figures(Policy::KvMainGroup).misjudged_ratio;
        assert!(kv.hit_ratio > figures(Policy::RoundRobin).hit_ratio, "seed {seed}: {kv:?}");
    }
    assert!(1.5 * all_groups < main_group, "{all_groups}, {main_group}");
}

/// Number of a prompt's leading blocks at each engine, by the index and in truth.
fn known_and_true(cluster: &mut Cluster<'_>, job: &Job, now: Nanos) -> (Vec<u32>, Vec<u32>) {
    let names = job.prompt_names(BLOCK);
    let holds =
        |engine: &Engine<&Job>| names.iter().take_while(|name| engine.holds(**name)).count();
    let held = cluster.engines.iter().map(|engine| holds(engine) as u32).collect();
    let index = cluster.router.index().expect("an index");
    let known = index.overlaps(names, None, now).expect("an answer");
    (known.iter().map(|blocks| blocks.device).collect(), held)
}

#[test]
fn an_index_that_hears_at_once_knows_what_engines_hold() {
    let jobs = generated(7, 160, BLOCK);
    let arrivals = faster(&jobs, 2.0);
    let mut compared = 0;
    let mut behind = 0;
    for delay in [0, 1_000_000_000] {
        let mut cluster =
            Cluster::new(&options(), Way { staleness: delay, ..Way::of(Policy::Kv) }, 1)
                .expect("a cluster");
        for (number, (job, &now)) in jobs.iter().zip(&arrivals).enumerate() {
            cluster.arrive(job, now).expect("placed");
            for other in jobs.iter().take(number).step_by(7) {
                let (known, held) = known_and_true(&mut cluster, other, now);
                compared += held.iter().filter(|blocks| **blocks > 8).count();
                behind += usize::from(known != held);
                assert!(delay > 0 || known == held, "request {number}: {known:?}, not {held:?}");
            }
        }
    }
    assert!(compared > 500, "{compared} prompts held");
    assert!(behind > 0, "an index that hears late is behind");
}

#[test]
fn prompts_computed_elsewhere_are_not_computed_again() {
    let jobs = generated(5, 150, BLOCK);
    let arrivals = faster(&jobs, 2.0);
    let way = Way { prefill_engines: 2, ..Way::of(Policy::Kv) };
    let mut cluster = Cluster::new(&options(), way, 1).expect("a cluster");
    for (job, &arrival) in jobs.iter().zip(&arrivals) {
        cluster.arrive(job, arrival).expect("placed");
    }
    cluster.run_until(Nanos::MAX).expect("to the end");
    let by_both: Vec<_> = cluster.placements.iter().map(|at| at.prefill.is_some()).collect();
    assert!(by_both.iter().filter(|is| **is).count() > 100, "{by_both:?}");
    let mut of_prefill = 0;
    let mut of_decode = 0;
    for (served, is_by_both) in cluster.served.iter().zip(&by_both) {
        let computed = (served.prompt_tokens - served.hit_tokens) as u64;
        let answer = served.answer_tokens as u64 - 1;
        if *is_by_both {
            of_prefill += computed;
            // The last token of the prompt is computed again at the decode engine.
            of_decode += 1 + answer;
            let both_steps = 2 * options().engine.model.step;
            assert!(served.begun + both_steps < served.first_token, "{served:?}");
        } else {
            of_decode += computed + answer;
        }
        assert!(served.arrival <= served.begun && served.first_token <= served.end, "{served:?}");
    }
    let computed =
        |engines: &[Engine<&Job>]| engines.iter().map(Engine::computed_tokens).sum::<u64>();
    let (prefill, decode) = cluster.engines.split_at(2);
    assert_eq!((computed(prefill), computed(decode)), (of_prefill, of_decode));
}

/// With a slow network, engines that may fetch behave like the others. With a fast network, they compute less.
#[test]
fn blocks_are_fetched_where_that_is_faster() {
    let jobs = generated(5, 300, BLOCK);
    let arrivals = faster(&jobs, 2.0);
    let run = |policy, token| {
        let transfer = TransferModel { begin: 0, token };
        let options = ClusterOptions { transfer, ..options() };
        run(&options, &jobs, &arrivals, Way::of(policy), 1).expect("a run")
    };
    let kv = run(Policy::Kv, 0);
    assert_eq!(kv, run(Policy::KvFetch, 1_000_000_000), "a second for each token");
    let fast = Figures::of(&run(Policy::KvFetch, 100));
    let kv = Figures::of(&kv);
    assert!(fast.hit_ratio > kv.hit_ratio, "{fast:?}, {kv:?}");
    assert!(fast.wait_prefill < kv.wait_prefill, "{fast:?}, {kv:?}");
}

/// Fetches from one holder are sequential: each adds its time. Only blocks that the holder has are fetched.
#[test]
fn a_holder_sends_one_fetch_after_the_other() {
    let jobs = generated(5, 4, BLOCK);
    let transfer = TransferModel { begin: 10, token: 1 };
    let options = ClusterOptions { transfer, ..options() };
    let mut cluster = Cluster::new(&options, Way::of(Policy::KvFetch), 1).expect("a cluster");
    let job = jobs.iter().find(|job| job.prompt_tokens > 4 * BLOCK).expect("a long prompt");
    cluster.arrive(job, 0).expect("placed");
    cluster.run_until(Nanos::MAX).expect("to the end");
    let holder = cluster.engines.iter().position(|engine| engine.holds(job.names[0]));
    let holder = holder.expect("an engine that served it");
    let blocks = TierBlocks { host: 3, ..TierBlocks::default() };
    let kind = BlockKind { bytes: NonZeroU64::MIN, fingerprint: 0 };
    let held = Holder { candidate: holder, worker: holder, blocks, kind };
    let rate = |per_second| Rate { per_second, is_measured: true };
    let block_size = NonZeroU32::new(BLOCK as u32).expect("not 0");
    let credits = CostConfig::default().credits;
    let planner = FetchPlanner::new(4, block_size, &credits, rate(1e9), [held], 0);
    let by = Fetcher { worker: 99, kind: Some(kind), own_blocks: 1, prefill: rate(100.0) };
    let plan = planner.plan(&by).expect("two blocks");
    let took = 10 + 2 * BLOCK as Nanos;
    assert_eq!(cluster.fetch(job, &plan, 5_000), PeerFetch { blocks: 3, at: 5_000 + took });
    assert_eq!(cluster.fetch(job, &plan, 5_000), PeerFetch { blocks: 3, at: 5_000 + 2 * took });
    // The blocks of another prompt are not cached there.
    let other = Job { names: vec![1, 2, 3, 4], ..job.clone() };
    assert_eq!(cluster.fetch(&other, &plan, 50_000), PeerFetch { blocks: 1, at: 50_010 });
}

#[test]
fn a_slower_network_makes_first_tokens_later() {
    let jobs = generated(5, 150, BLOCK);
    let arrivals = faster(&jobs, 2.0);
    let way = Way { prefill_engines: 2, ..Way::of(Policy::Kv) };
    let mean = |transfer| {
        let options = ClusterOptions { transfer, ..options() };
        Figures::of(&run(&options, &jobs, &arrivals, way, 1).expect("a run")).ttft_mean
    };
    let at_once = mean(TransferModel { begin: 0, token: 0 });
    let slow = mean(TransferModel { begin: 1_000_000_000, token: 0 });
    assert!(slow > at_once + 0.5, "{slow} s, {at_once} s without transfers");
}

#[test]
fn routers_that_hear_at_once_place_as_one() {
    let jobs = generated(9, 200, BLOCK);
    let arrivals = faster(&jobs, 3.0);
    let mean = |routers, sync_delay| {
        let options = ClusterOptions { sync_delay, ..options() };
        let way = Way { routers, ..Way::of(Policy::Kv) };
        Figures::of(&run(&options, &jobs, &arrivals, way, 1).expect("a run")).ttft_mean
    };
    let one = mean(1, 0);
    // Equal costs are decided round-robin by each replica separately.
    assert!((mean(3, 0) / one - 1.0).abs() < 0.1, "{} s, {one} s of one router", mean(3, 0));
    let deaf = mean(3, u64::MAX);
    assert!(deaf > one, "{deaf} s by routers that never hear of each other, {one} s by one");
}

#[test]
fn a_lower_tier_is_faster_than_computing_again() {
    let jobs = generated(5, 300, BLOCK);
    let arrivals = faster(&jobs, 1.0);
    let figures = |host_blocks, disk_blocks| {
        let mut options = options();
        (options.engine.host_blocks, options.engine.disk_blocks) = (host_blocks, disk_blocks);
        let way = Way { staleness: 0, ..Way::of(Policy::Kv) };
        Figures::of(&run(&options, &jobs, &arrivals, way, 1).expect("a run"))
    };
    let without = figures(0, 0);
    let host = figures(20_000, 0);
    let disk = figures(0, 20_000);
    assert!(host.hit_ratio > without.hit_ratio, "{host:?}, {without:?}");
    assert!(host.ttft_mean < without.ttft_mean, "{host:?}, {without:?}");
    assert!(host.ttft_mean < disk.ttft_mean, "{host:?}, {disk:?}");
}
