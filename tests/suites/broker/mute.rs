//! Agents that hear questions and never answer.

use crate::agents::{Broker, INCARNATION};
use crate::fleet::{Holder, check, flags, index, until};
use crate::scripted::Scripted;
use kvasir_sim::demo::metrics;
use kvasir_sim::server::Server;
use kvbm_agent::broker::Delivery;
use std::fs::read_to_string;
use std::time::Duration;

/// Batches of a source. Several times what is held back of one.
const BATCHES: u64 = 20_000;
/// Batches on their way at a time: what waits to be read is bounded.
const AT_ONCE: u64 = 2_000;
/// Clock ticks of a second of CPU time.
const TICKS: u64 = 100;

/// CPU time that the server has used.
fn used(server: &Server) -> Duration {
    let process = server.process_id().expect("it runs");
    let text = read_to_string(format!("/proc/{process}/stat")).expect("a process");
    let (_, fields) = text.rsplit_once(')').expect("its name");
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks: u64 =
        [11, 12].map(|at: usize| fields[at].parse::<u64>().expect("ticks")).iter().sum();
    Duration::from_millis(ticks * 1_000 / TICKS)
}

/// Messages that the server has taken.
async fn taken(server: &Server) -> u64 {
    let samples = metrics::fetch(server.addresses.http).await.expect("metrics");
    let messages = samples.iter().filter(|sample| sample.name.ends_with("broker_messages_total"));
    messages.map(|sample| sample.value as u64).sum()
}

/// Says all batches from the one of number `from`; how much CPU time they cost until `holder` is heard.
async fn costs(source: &Scripted, from: u64, server: &Server, holder: &mut Holder) -> Duration {
    let before = used(server);
    for first in (from..BATCHES).step_by(AT_ONCE as usize) {
        let taken_before = taken(server).await;
        let sequences = first..BATCHES.min(first + AT_ONCE);
        let expected = taken_before + (sequences.end - sequences.start);
        source.publish(INCARNATION, sequences).await;
        until("all are taken", async || taken(server).await >= expected).await;
    }
    holder.publish(50);
    check(server, std::slice::from_ref(holder)).await;
    used(server) - before
}

#[tokio::test]
async fn an_agent_that_never_answers_costs_nothing_and_holds_nobody_up() {
    for (delivery, name) in [(Delivery::Core, "core"), (Delivery::Jetstream, "jetstream")] {
        let broker = Broker::start().await;
        let mut holder = Holder::start(&broker, 0, delivery, None).await;
        let mut server = index(&flags(&broker, name, &[])).await;
        check(&server, std::slice::from_ref(&holder)).await;
        let whole = Scripted::new(&broker, "w.1", 0).await;
        let plain = costs(&whole, 0, &server, &mut holder).await;
        // The first is missing.
        let torn = Scripted::new(&broker, "w.2", 0).await;
        let mute = torn.mute(&broker).await;
        let waiting = costs(&torn, 1, &server, &mut holder).await;
        println!("{name}: {plain:?}; with all held back {waiting:?}");
        assert!(waiting < plain * 3, "{name}: {waiting:?}, else {plain:?}");
        drop(mute);
        server.stop().await;
    }
}
