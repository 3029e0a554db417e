use crate::fleet::{Fleet, PATIENCE};
use crate::load::{Load, fault};
use router_client::HedgeConfig;
use std::time::Duration;
use tokio::time::Instant;

const SHARDS: usize = 3;
const REPLICAS: usize = 2;
/// Questions between two changes.
const QUESTIONS: u64 = 60;

/// Kills every process in turn under load: no answer lacks anything. Then a whole shard is down: the
/// answers name it, and say all that the others know.
#[tokio::test]
async fn a_process_that_is_killed_is_missed_by_nobody() {
    let mut fleet = Fleet::start(3, REPLICAS, &[]).await;
    let wholes = fleet.whole_answers().await;
    assert!(wholes.iter().all(|whole| whole.overlaps.len() >= 3), "{wholes:?}");
    let client = fleet.client(PATIENCE, HedgeConfig::default());
    let load = Load::default();
    let mut others = 0..;
    for (shard, replica) in (0..SHARDS).flat_map(|shard| [(shard, 0), (shard, 1)]) {
        let when = format!("replica {replica} of shard {shard}");
        let dying = async {
            load.progress(QUESTIONS).await;
            kill(&fleet, shard, replica);
            // Events go on, and are to be caught up with.
            for (worker, number) in (0..fleet.workers.len()).zip(&mut others) {
                fleet.run_other(worker, number).await;
            }
            load.progress(QUESTIONS).await;
        };
        load.during(&fleet, &client, &wholes, dying).await;
        load.assert_faultless(&format!("{when} is dead"));
        let begun = Instant::now();
        fleet.restart(shard, replica).await;
        let listening = begun.elapsed();
        let back = async {
            fleet.wait_until_exact(&fleet.shards[shard][replica]).await;
            let exact = begun.elapsed();
            load.progress(QUESTIONS).await;
            exact
        };
        let exact = load.during(&fleet, &client, &wholes, back).await;
        load.assert_faultless(&format!("{when} is back"));
        println!("{when}: listens after {listening:?}, exact after {exact:?}");
    }
    println!("{}; {:?}", load.times(), client.counts());

    for server in &mut fleet.shards[1] {
        server.kill().await;
    }
    let deadline = Duration::from_secs(2);
    let client = fleet.client(deadline, HedgeConfig::default());
    for (number, whole) in wholes.iter().enumerate() {
        let begun = Instant::now();
        let answer = client.find(&fleet.prompt(number)).await.expect("an answer of two shards");
        assert!(begun.elapsed() < deadline, "{:?}", begun.elapsed());
        assert_eq!(answer.missing_shards, [1]);
        let mut known = whole.clone();
        let others = fleet.workers_of(1);
        known.overlaps.retain(|at| !others.contains(&at.worker.worker.as_str()));
        known.best_overlap_blocks = known.overlaps.iter().map(|at| at.blocks).max().unwrap_or(0);
        let answer = router_client::Answer { missing_shards: Vec::new(), ..answer };
        assert_eq!(fault(&answer, &known), None);
    }
    fleet.stop().await;
}

/// Sends SIGKILL and does not wait.
fn kill(fleet: &Fleet, shard: usize, replica: usize) {
    let server = &fleet.shards[shard][replica];
    server.signal(rustix::process::Signal::KILL).expect("a process");
}
