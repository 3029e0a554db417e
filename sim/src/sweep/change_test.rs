use super::*;
use crate::engine::timed::{EngineOptions, StepModel, TransferModel};
use router_client::route::CostConfig;

fn base() -> Setup {
    let engine = EngineOptions {
        model: StepModel::default(),
        block_size: 64,
        capacity_blocks: 6_250,
        host_blocks: 10_000,
        disk_blocks: 0,
        state_slots: 0,
        step_tokens_max: 8_192,
        running_max: 256,
    };
    let sync_delay = 0;
    let transfer = TransferModel { begin: 0, token: 0 };
    let cost = CostConfig::default();
    let options =
        ClusterOptions { engines: 3, engine, cost, sync_delay, transfer, states_capacity: true };
    Setup { options, way: Way::of(Policy::Kv), traffic: 1.0 }
}

fn applied(text: &str) -> Result<Setup> {
    text.parse::<WhatIf>().map_err(anyhow::Error::msg)?.apply(base())
}

#[test]
fn changes_are_made_as_they_are_written() {
    let setup = applied("workers=+2,cache=2x,no-host,disk=128000,weight=4").expect("good");
    assert_eq!(setup.options.engines, 5);
    let engine = setup.options.engine;
    let blocks = [engine.capacity_blocks, engine.host_blocks, engine.disk_blocks];
    assert_eq!(blocks, [12_500, 0, 2_000]);
    assert_eq!(setup.options.cost.overlap_score_weight, 4.0);
    let setup = applied("workers=-1,traffic=1.5x,policy=round-robin,routers=3").expect("good");
    assert_eq!((setup.options.engines, setup.traffic, setup.way.routers), (2, 1.5, 3));
    assert_eq!(setup.way.policy, Policy::RoundRobin);
    assert_eq!(applied("staleness-ms=0").expect("good").way.staleness, 0);
    assert_eq!(applied("host=0.5x").expect("good").options.engine.host_blocks, 5_000);
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    for wrong in ["workers", "workers=x", "cache=NaN", "no-disk=1", "speed=2", "policy=best", ""] {
        let error = applied(wrong).expect_err(wrong).to_string();
        assert!(error.contains(wrong), "{wrong}: {error}");
    }
    for wrong in ["workers=-3", "cache=0", "prefill-workers=3", "traffic=0", "weight=-1"] {
        let error = format!("{:#}", applied(wrong).expect_err(wrong));
        assert!(error.contains(wrong), "{wrong}: {error}");
    }
}
