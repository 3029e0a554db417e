use super::super::figures::Figures;
use super::super::job::{faster, generated};
use super::super::router::ClusterOptions;
use super::*;
use crate::engine::timed::model::{EngineOptions, StepModel};
use router_client::route::CostConfig;

const BLOCK: usize = 64;

fn options() -> ClusterOptions {
    let engine = EngineOptions {
        model: StepModel::default(),
        block_size: BLOCK,
        // Small enough that engines evict.
        capacity_blocks: 2_500,
        step_tokens_max: 8_192,
        running_max: 256,
    };
    ClusterOptions { engines: 4, engine, cost: CostConfig::default() }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let jobs = generated(3, 150, BLOCK);
    let arrivals = faster(&jobs, 2.0);
    let run = |seed| run(&options(), &jobs, &arrivals, Policy::PowerOfTwo, seed).expect("a run");
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn the_oracle_is_not_slower_than_chance() {
    for seed in [1, 2, 3] {
        let jobs = generated(seed, 200, BLOCK);
        let arrivals = faster(&jobs, 2.0);
        let mean = |policy| {
            let run = run(&options(), &jobs, &arrivals, policy, seed).expect("a run");
            Figures::of(&run).ttft_mean
        };
        let (oracle, random) = (mean(Policy::Oracle), mean(Policy::Random));
        assert!(oracle <= random, "seed {seed}: {oracle} s, {random} s by chance");
    }
}

#[test]
fn each_request_is_served_once_and_in_order() {
    let jobs = generated(5, 150, BLOCK);
    let arrivals = faster(&jobs, 4.0);
    let policies = [Policy::Kv(0), Policy::RoundRobin, Policy::Random, Policy::LeastLoaded];
    for policy in policies.into_iter().chain([Policy::PowerOfTwo, Policy::Oracle]) {
        let run = run(&options(), &jobs, &arrivals, policy, 1).expect("a run");
        assert_eq!(run.served.len(), jobs.len());
        for (served, (job, &arrival)) in run.served.iter().zip(jobs.iter().zip(&arrivals)) {
            assert_eq!((served.arrival, served.prompt_tokens), (arrival, job.prompt_tokens));
            assert!(served.arrival < served.first_token && served.first_token <= served.end);
            assert!(served.hit_tokens < served.prompt_tokens);
        }
        let tokens = |at: &Served| at.prompt_tokens - at.hit_tokens + at.answer_tokens - 1;
        let computed: usize = run.served.iter().map(tokens).sum();
        assert_eq!(computed as u64, run.computed_tokens.iter().sum::<u64>(), "{policy}");
    }
}

/// How many leading blocks of a prompt each engine holds, by the index and in truth.
fn known_and_true(cluster: &mut Cluster<'_>, job: &Job, now: Nanos) -> (Vec<u32>, Vec<u32>) {
    let names = job.prompt_names(BLOCK);
    let holds =
        |engine: &Engine<&Job>| names.iter().take_while(|name| engine.holds(**name)).count();
    let held = cluster.engines.iter().map(|engine| holds(engine) as u32).collect();
    let index = cluster.router.index().expect("an index");
    (index.overlaps(names, now).expect("an answer"), held)
}

#[test]
fn an_index_that_hears_at_once_knows_what_engines_hold() {
    let jobs = generated(7, 160, BLOCK);
    let arrivals = faster(&jobs, 2.0);
    let (mut compared, mut behind) = (0, 0);
    for delay in [0, 1_000_000_000] {
        let mut cluster = Cluster::new(&options(), Policy::Kv(delay), 1).expect("a cluster");
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
