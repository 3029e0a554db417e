use crate::fleet::{Fleet, MODEL, PATIENCE, connect, free, loads, request, tokens, until};
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_sim::demo::metrics;
use kvasir_sim::server::Server;
use tokio::time::timeout;
use tonic::Code;

#[tokio::test]
async fn a_request_goes_to_the_worker_that_holds_its_prefix() -> Result<()> {
    let mut fleet = Fleet::start(3, &[]).await?;
    fleet.compute(1, tokens(0, 8)).await?;
    let prompt = [tokens(0, 8), tokens(9_000, 2)].concat();
    let named =
        pb::SelectWorkerRequest { request_id: "r".to_owned(), explain: true, ..request(prompt) };
    let chosen = fleet.select(named.clone()).await?;
    ensure!((chosen.worker_id.as_str(), chosen.request_id.as_str()) == ("w1", "r"), "{chosen:?}");
    ensure!(chosen.reason() == pb::DecisionReason::LowestScore, "{chosen:?}");
    ensure!(chosen.index() == pb::IndexOutcome::Answered, "{chosen:?}");
    let cost = chosen.cost.context("a cost")?;
    ensure!((cost.credited_blocks, cost.prefill_blocks, cost.total) == (8.0, 2.0, 2.0), "{cost:?}");
    let explained: Vec<_> =
        chosen.explanations.iter().map(|at| (&at.worker_id, at.score)).collect();
    ensure!(
        explained.len() == 3 && explained[0].1 == 10.0 && explained[1].1 == 2.0,
        "{explained:?}"
    );

    // The same id is refused while it is under way; a copy under another id shares its blocks.
    let again = fleet.router.select_worker(named).await.expect_err("it is under way");
    ensure!(again.code() == Code::FailedPrecondition, "{again}");
    ensure!(
        loads(&mut fleet.router).await? == [("w0".into(), 0), ("w1".into(), 1), ("w2".into(), 0)]
    );
    // Two of its ten blocks are to be computed.
    gauges(&fleet, [1.0, 1.0, 32.0, 10.0]).await?;
    let model = MODEL.to_owned();
    let request_id = "r".to_owned();
    let prefilled = pb::MarkPrefillCompletedRequest {
        model: model.clone(),
        request_id: request_id.clone(),
        ..Default::default()
    };
    fleet.router.mark_prefill_completed(prefilled).await?;
    let output =
        pb::ReportOutputRequest { model, request_id, output_tokens: 3, ..Default::default() };
    fleet.router.report_output(output).await?;
    let ended = pb::FreeRequest { cached_tokens: Some(100), ..free("r") };
    gauges(&fleet, [1.0, 0.0, 0.0, 10.0]).await?;
    let freed = fleet.router.free(ended).await?.into_inner();
    ensure!(freed.expected_cached_tokens == Some(128), "{freed:?}");
    let again = fleet.router.free(free("r")).await.expect_err("it has ended");
    ensure!(again.code() == Code::NotFound && again.message().contains("\"r\""), "{again}");
    ensure!(loads(&mut fleet.router).await?.iter().all(|(_, requests)| *requests == 0));

    let http = fleet.process.addresses.http;
    for (name, labels, expected) in [
        ("router_decisions_total", "lowest_score", 1.0),
        ("router_index_outcomes_total", "answered", 1.0),
        ("router_freed_total", "", 1.0),
        ("router_cached_tokens_error_sum", "", -28.0),
        ("router_overhead_seconds_count", "choosing", 1.0),
        ("router_rejections_total", "duplicate_id", 1.0),
    ] {
        let found = metrics::sum(http, name, labels).await?;
        ensure!((found - expected).abs() < 1e-9, "{name} is {found}, not {expected}");
    }
    fleet.stop().await;
    Ok(())
}

/// Checks what `/metrics` shows of the load of worker w1: requests, those prefilling, tokens to compute, blocks.
async fn gauges(fleet: &Fleet, expected: [f64; 4]) -> Result<()> {
    let names = ["active_requests", "prefilling_requests", "prefill_tokens", "active_blocks"];
    for (name, expected) in names.into_iter().zip(expected) {
        let name = format!("router_{name}");
        let found = metrics::sum(fleet.process.addresses.http, &name, "worker=\"w1\"").await?;
        ensure!((found - expected).abs() < 1e-9, "{name} is {found}, not {expected}");
    }
    Ok(())
}

#[tokio::test]
async fn all_metrics_are_there_with_zero_whatever_the_mode() -> Result<()> {
    let fleet = Fleet::start(1, &["--mode", "round-robin"]).await?;
    let samples = metrics::fetch(fleet.process.addresses.http).await?;
    for (name, labels) in [
        ("kvasir_router_decisions_total", "reason=\"lowest_score\""),
        ("kvasir_router_rejections_total", "reason=\"busy\""),
        ("kvasir_router_index_outcomes_total", "outcome=\"timeout\""),
        ("kvasir_router_overhead_seconds_count", "phase=\"queue\""),
        ("kvasir_router_input_tokens_count", ""),
        ("kvasir_router_kv_hit_ratio_count", ""),
        ("kvasir_router_cached_tokens_error_count", ""),
        ("kvasir_router_sync_digests_differing_total", ""),
    ] {
        let is_it = |at: &&metrics::Sample| at.name == name && at.labels.contains(labels);
        let found = samples.iter().find(is_it).with_context(|| format!("{name} {labels}"))?;
        ensure!(found.value == 0.0, "{found:?}");
    }
    fleet.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_dry_run_books_nothing_and_hashes_do_as_tokens() -> Result<()> {
    let mut fleet = Fleet::start(2, &[]).await?;
    fleet.compute(0, tokens(0, 4)).await?;
    let look = pb::SelectWorkerRequest { dry_run: true, ..request(tokens(0, 4)) };
    for _ in 0..3 {
        let chosen = fleet.select(look.clone()).await?;
        ensure!(chosen.worker_id == "w0" && chosen.request_id.is_empty(), "{chosen:?}");
        ensure!(chosen.explanations.len() == 2, "{chosen:?}");
    }
    let prompt = tokens(0, 4);
    let hashes = router_client::Prompt::new(MODEL, 16, &prompt).local_hashes();
    let hashed = pb::SelectWorkerRequest {
        token_ids: Vec::new(),
        local_hashes: hashes.iter().map(|hash| hash.0).collect(),
        input_tokens: Some(70),
        ..request(Vec::new())
    };
    let chosen = fleet.select(hashed).await?;
    let cost = chosen.cost.context("a cost")?;
    ensure!((chosen.worker_id.as_str(), cost.new_prefill_tokens) == ("w0", 6.0), "{chosen:?}");
    ensure!(loads(&mut fleet.router).await? == [("w0".into(), 1), ("w1".into(), 0)]);
    fleet.stop().await;
    Ok(())
}

#[tokio::test]
async fn requests_choose_modes_and_workers_themselves() -> Result<()> {
    let mut fleet = Fleet::start(3, &[]).await?;
    fleet.compute(2, tokens(0, 4)).await?;
    let pinned = |id: &str| Some(pb::PinnedWorker { worker_id: id.to_owned(), dp_rank: None });
    let plain = || request(tokens(0, 4));
    let direct = pb::SelectWorkerRequest { pinned: pinned("w1"), ..plain() };
    let direct = pb::SelectWorkerRequest { mode: pb::RouterMode::Direct.into(), ..direct };
    let chosen = fleet.select(direct).await?;
    ensure!(
        chosen.worker_id == "w1" && chosen.index() == pb::IndexOutcome::NotNeeded,
        "{chosen:?}"
    );
    let excluded =
        pb::SelectWorkerRequest { excluded_worker_ids: vec!["w2".to_owned()], ..plain() };
    let chosen = fleet.select(excluded).await?;
    ensure!(chosen.worker_id != "w2" && chosen.removed.len() == 1, "{chosen:?}");
    let weightless = pb::SelectWorkerRequest { overlap_score_weight: Some(0.0), ..plain() };
    let chosen = fleet.select(weightless).await?;
    ensure!(chosen.index() == pb::IndexOutcome::NotNeeded, "{chosen:?}");
    for (bad, code, text) in [
        (
            pb::SelectWorkerRequest { pinned: pinned("w9"), ..plain() },
            Code::FailedPrecondition,
            "not pinned",
        ),
        (pb::SelectWorkerRequest { mode: 99, ..plain() }, Code::InvalidArgument, "mode"),
        (
            pb::SelectWorkerRequest { temperature: Some(-1.0), ..plain() },
            Code::InvalidArgument,
            "temperature",
        ),
        (
            pb::SelectWorkerRequest { block_size: Some(8), ..plain() },
            Code::FailedPrecondition,
            "must be 16",
        ),
        (pb::SelectWorkerRequest { model: "x".to_owned(), ..plain() }, Code::NotFound, "[\"m\"]"),
        (
            pb::SelectWorkerRequest { mode: pb::RouterMode::Direct.into(), ..plain() },
            Code::InvalidArgument,
            "names no worker",
        ),
        (
            pb::SelectWorkerRequest { input_tokens: Some(1), ..plain() },
            Code::InvalidArgument,
            "input_tokens",
        ),
        (request(Vec::new()), Code::InvalidArgument, "token_ids"),
    ] {
        let status = fleet.router.select_worker(bad).await.expect_err(text);
        ensure!(status.code() == code && status.message().contains(text), "{status}");
    }
    fleet.stop().await;
    Ok(())
}

#[tokio::test]
async fn without_an_index_load_decides_and_the_answer_says_why() -> Result<()> {
    let mut fleet = Fleet::start(2, &["--timing", "index-deadline=500ms"]).await?;
    fleet.server.kill().await;
    let (first, second) = (
        fleet.select(request(tokens(0, 4))).await?,
        fleet.select(request(tokens(9_000, 4))).await?,
    );
    for chosen in [&first, &second] {
        let is_named =
            matches!(chosen.index(), pb::IndexOutcome::Unavailable | pb::IndexOutcome::Timeout);
        ensure!(is_named && !chosen.index_error.is_empty(), "{chosen:?}");
    }
    ensure!(first.worker_id != second.worker_id, "load decides: {first:?} {second:?}");
    let http = fleet.process.addresses.http;
    let named = metrics::sum(http, "router_index_outcomes_total", "unavailable").await?
        + metrics::sum(http, "router_index_outcomes_total", "timeout").await?;
    ensure!(named == 2.0, "{named}");
    until("the operator is told", async || {
        let (status, text) = metrics::get(http, "/readyz").await?;
        Ok((status == 200 && text.contains("not well: shard 0")).then_some(()))
    })
    .await?;
    let named = format!("{}: ", fleet.server.addresses.grpc);
    until("the log tells, once", async || {
        let log = fleet.process.output();
        let lines = log.lines().filter(|line| line.contains("does not list its workers"));
        let lines: Vec<_> = lines.collect();
        let is_named = lines.iter().all(|line| line.contains("WARN") && line.contains(&named));
        ensure!(is_named && lines.len() <= 3, "each problem is logged when it is new: {log}");
        Ok((!lines.is_empty()).then_some(()))
    })
    .await?;
    // It comes back with nothing: that takes no worker away.
    let again = fleet.server.addresses;
    fleet.server = Server::start(again.grpc, again.http).await?;
    ensure!(fleet.server.addresses == again, "another process took the port");
    until("the index is back", async || {
        let (_, text) = metrics::get(http, "/readyz").await?;
        Ok((!text.contains("shard 0")).then_some(()))
    })
    .await?;
    let third = fleet.select(request(tokens(0, 4))).await?;
    ensure!(third.index() == pb::IndexOutcome::Refused, "it knows no such model: {third:?}");
    ensure!(loads(&mut fleet.router).await?.len() == 2, "both workers are still there");
    fleet.stop().await;
    Ok(())
}

#[tokio::test]
async fn engines_without_events_are_known_by_decisions() -> Result<()> {
    let mut fleet = Fleet::start(2, &["--kv-events", "false"]).await?;
    let first = fleet.select(request(tokens(0, 6))).await?;
    fleet.router.free(free(&first.request_id)).await?;
    // The index has the decision: a router that never saw the request follows it.
    let index = fleet.server.addresses.grpc.to_string();
    let mut other =
        Server::router(&["--indexer", &index, "--timing", "discovery-interval=100ms"]).await?;
    metrics::ready(other.addresses.http).await?;
    let mut router = connect(other.addresses.grpc).await?;
    let found = until("the placement counts", async || {
        let look = pb::SelectWorkerRequest { dry_run: true, ..request(tokens(0, 6)) };
        let chosen = router.select_worker(look).await?.into_inner();
        Ok(chosen.cost.filter(|cost| cost.credited_blocks == 6.0).map(|_| chosen.worker_id))
    })
    .await?;
    ensure!(found == first.worker_id, "{found}, not {}", first.worker_id);
    other.stop().await;
    fleet.stop().await;
    Ok(())
}

#[tokio::test]
async fn loads_are_watched_and_workers_that_go_are_gone() -> Result<()> {
    let mut fleet = Fleet::start(2, &[]).await?;
    let watch = pb::WatchRouterLoadsRequest { min_interval_ms: Some(10), ..Default::default() };
    let mut watched = fleet.router.watch_loads(watch).await?.into_inner();
    let first = watched.message().await?.context("loads at once")?;
    ensure!(first.ranks.len() == 2, "{first:?}");
    let chosen = fleet.select(request(tokens(0, 4))).await?;
    let next = timeout(PATIENCE, watched.message()).await??.context("a change")?;
    let busy: Vec<_> =
        next.ranks.iter().filter(|at| at.routed.is_some_and(|at| at.requests == 1)).collect();
    ensure!(busy.len() == 1 && busy[0].worker_id == chosen.worker_id, "{next:?}");
    let gone = pb::RemoveWorkerRequest {
        worker_id: chosen.worker_id,
        model: MODEL.to_owned(),
        ..Default::default()
    };
    fleet.indexer.remove_worker(gone).await?;
    loop {
        let next = timeout(PATIENCE, watched.message()).await??.context("a change")?;
        if next.ranks.len() == 1 {
            break;
        }
    }
    let late = fleet.router.free(free(&chosen.request_id)).await.expect_err("its worker is gone");
    ensure!(late.code() == Code::NotFound, "{late}");
    fleet.stop().await;
    Ok(())
}
