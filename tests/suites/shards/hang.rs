use crate::fleet::Fleet;
use crate::load::{Load, Times};
use router_client::{Answer, HedgeConfig};
use rustix::process::Signal;
use std::time::Duration;

/// Questions of each measurement: few enough that one each of the askers is more than 1 %.
const QUESTIONS: u64 = 200;
const DEADLINE: Duration = Duration::from_secs(1);

async fn measure(fleet: &Fleet, wholes: &[Answer], hedge: HedgeConfig) -> (Times, u64) {
    let client = fleet.client(DEADLINE, hedge);
    let load = Load::default();
    // The first questions find out who is fresh; then one replica of the second shard stops.
    load.during(fleet, &client, wholes, load.progress(100)).await;
    load.assert_faultless("all are well");
    let quiet = load.times();
    let hung = &fleet.shards[1][0];
    hung.signal(Signal::STOP).expect("a process");
    load.during(fleet, &client, wholes, load.progress(QUESTIONS)).await;
    hung.signal(Signal::CONT).expect("a process");
    let times = load.times();
    let missing = client.counts().iter().map(|counts| counts.missing).sum();
    println!("quiet: {quiet}; one stopped: {times}; {missing} answers lack a shard");
    fleet.wait_until_exact(hung).await;
    (times, missing)
}

/// A replica that hangs costs a hedge's delay, and without hedges the time of a question.
#[tokio::test]
async fn a_replica_that_hangs_costs_a_hedge() {
    let fleet = Fleet::start(2, 2, &[]).await;
    let wholes = fleet.whole_answers().await;
    let (hedged, missing) = measure(&fleet, &wholes, HedgeConfig::default()).await;
    assert_eq!(missing, 0);
    let never = HedgeConfig { percent: 0, ..HedgeConfig::default() };
    let (unhedged, missing) = measure(&fleet, &wholes, never).await;
    assert!(missing > 0, "questions that only the stopped replica was asked");
    // Shards have nine tenths of the time.
    assert!(unhedged.p99 >= DEADLINE * 8 / 10, "{unhedged:?}");
    assert!(hedged.p99 < DEADLINE / 2 && hedged.most < DEADLINE * 8 / 10, "{hedged:?}");
    fleet.stop().await;
}
