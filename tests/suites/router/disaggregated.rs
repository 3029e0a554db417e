//! Disaggregated serving: one worker computes the prompt, another one generates.

use crate::fleet::{Fleet, MODEL, free, request, tokens, until};
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_proto::pb::PrefillOutcome;
use kvasir_sim::demo::metrics;
use tonic::Code;

/// Flags under which each prompt of a block is long enough.
const FLAGS: [&str; 4] = ["--queue", "threshold=0", "--remote-prefill-tokens-min", "16"];

fn role(role: pb::WorkerRole) -> pb::WorkerProfile {
    pb::WorkerProfile { role: role.into(), ..Default::default() }
}

fn disaggregated(first: u32) -> pb::SelectWorkerRequest {
    pb::SelectWorkerRequest { disaggregate: true, ..request(tokens(first, 4)) }
}

/// Requests under way at a worker.
async fn under_way(fleet: &mut Fleet, id: &str) -> Result<u64> {
    let loads = crate::fleet::loads(&mut fleet.router).await?;
    loads.into_iter().find(|(worker, _)| worker == id).map(|(_, at)| at).context("a worker")
}

#[tokio::test]
async fn both_choices_are_in_one_answer_as_long_as_prefill_workers_are_there() -> Result<()> {
    let mut fleet = Fleet::start(0, &FLAGS).await?;
    fleet.register("d", role(pb::WorkerRole::Decode)).await?;
    let alone = fleet.select(disaggregated(0)).await?;
    ensure!(alone.worker_id == "d" && alone.prefill.is_none(), "{alone:?}");
    ensure!(alone.prefill_outcome() == PrefillOutcome::NoWorker, "{alone:?}");
    fleet.router.free(free(&alone.request_id)).await?;

    fleet.register("p", role(pb::WorkerRole::Prefill)).await?;
    let both = fleet.select(disaggregated(0)).await?;
    let prefill = both.prefill.as_ref().context("a prefill worker")?;
    ensure!(both.prefill_outcome() == PrefillOutcome::Chosen, "{both:?}");
    ensure!((prefill.worker_id.as_str(), both.worker_id.as_str()) == ("p", "d"), "{both:?}");
    ensure!((under_way(&mut fleet, "p").await?, under_way(&mut fleet, "d").await?) == (1, 1));
    // The prefill worker is done with the first token.
    let done = pb::MarkPrefillCompletedRequest {
        model: MODEL.to_owned(),
        request_id: both.request_id.clone(),
        ..Default::default()
    };
    fleet.router.mark_prefill_completed(done).await?;
    ensure!((under_way(&mut fleet, "p").await?, under_way(&mut fleet, "d").await?) == (0, 1));
    fleet.router.free(free(&both.request_id)).await?;
    ensure!(under_way(&mut fleet, "d").await? == 0);

    let remove = pb::RemoveWorkerRequest {
        worker_id: "p".to_owned(),
        model: MODEL.to_owned(),
        ..Default::default()
    };
    fleet.indexer.remove_worker(remove).await?;
    let mut router = fleet.router.clone();
    until("the prefill worker is gone", async || {
        let loads = crate::fleet::loads(&mut router).await?;
        Ok(loads.iter().all(|(worker, _)| worker != "p").then_some(()))
    })
    .await?;
    let alone = fleet.select(disaggregated(0)).await?;
    ensure!(alone.prefill_outcome() == PrefillOutcome::NoWorker, "{alone:?}");
    let http = fleet.process.addresses.http;
    for (outcome, expected) in [("chosen", 1.0), ("no_worker", 2.0), ("busy", 0.0)] {
        let label = format!("outcome=\"{outcome}\"");
        let counted = metrics::sum(http, "router_prefill_outcomes_total", &label).await?;
        ensure!(counted == expected, "{outcome}: {counted}");
    }
    fleet.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_request_whose_prefill_fails_goes_on_without() -> Result<()> {
    let flags = [FLAGS.as_slice(), &["--worker-health", "ejection-failures=1"]].concat();
    let mut fleet = Fleet::start(0, &flags).await?;
    fleet.register("d", role(pb::WorkerRole::Decode)).await?;
    fleet.register("p", role(pb::WorkerRole::Prefill)).await?;
    fleet.register("q", role(pb::WorkerRole::Prefill)).await?;
    let both = fleet.select(disaggregated(0)).await?;
    let failed = both.prefill.context("a prefill worker")?.worker_id;
    let prefill_failed = Some(true);
    fleet.router.free(pb::FreeRequest { prefill_failed, ..free(&both.request_id) }).await?;
    ensure!(under_way(&mut fleet, &failed).await? == 0);
    let local = fleet.select(request(tokens(0, 4))).await?;
    ensure!(local.worker_id == "d" && local.prefill.is_none(), "{local:?}");
    ensure!(local.prefill_outcome() == PrefillOutcome::Unspecified, "{local:?}");
    // Whoever failed is left alone; the other one is not.
    for first in 1..4 {
        let next = fleet.select(disaggregated(first * 1_000)).await?;
        let prefill = next.prefill.context("a prefill worker")?;
        ensure!(prefill.worker_id != failed, "{prefill:?}");
    }
    fleet.stop().await;
    Ok(())
}

#[tokio::test]
async fn requests_go_to_workers_that_serve_their_kind() -> Result<()> {
    let mut fleet = Fleet::start(0, &["--queue", "threshold=0"]).await?;
    let states = |types: &[pb::ModelType]| pb::WorkerProfile {
        model_types: types.iter().map(|at| i32::from(*at)).collect(),
        ..Default::default()
    };
    fleet.register("chat", states(&[pb::ModelType::Chat])).await?;
    fleet.register("text", states(&[pb::ModelType::Completions])).await?;
    for (kind, expected) in [(pb::ModelType::Chat, "chat"), (pb::ModelType::Completions, "text")] {
        for first in 0..3 {
            let asked = pb::SelectWorkerRequest {
                model_type: kind.into(),
                ..request(tokens(first * 1_000, 4))
            };
            let chosen = fleet.select(asked).await?;
            ensure!(chosen.worker_id == expected, "{kind:?}: {chosen:?}");
        }
    }
    let unknown = pb::SelectWorkerRequest { model_type: 9, ..request(tokens(0, 4)) };
    let refused = fleet.router.select_worker(unknown).await.expect_err("no such kind");
    ensure!(refused.code() == Code::InvalidArgument, "{refused}");
    ensure!(refused.message().contains("model_type has the unknown value 9"), "{refused}");
    for bad in [
        pb::SelectWorkerRequest { dry_run: true, ..disaggregated(0) },
        pb::SelectWorkerRequest { roles: vec![1], ..disaggregated(0) },
    ] {
        let refused = fleet.router.select_worker(bad).await.expect_err("it does not go together");
        ensure!(refused.code() == Code::InvalidArgument, "{refused}");
        ensure!(refused.message().contains("disaggregate"), "{refused}");
    }
    fleet.stop().await;
    Ok(())
}
