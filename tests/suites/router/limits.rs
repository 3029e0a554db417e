use crate::fleet::{Fleet, MODEL, PATIENCE, free, request, tokens, until};
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_sim::demo::metrics;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Code;
use tonic_types::StatusExt;

/// A worker without engine that computes 64 tokens a step, and has 100 blocks.
async fn register(fleet: &mut Fleet, id: &str, role: pb::WorkerRole) -> Result<()> {
    let profile = pb::WorkerProfile {
        role: role.into(),
        max_num_batched_tokens: Some(64),
        total_kv_blocks: Some(100),
        labels: vec![pb::Label { key: "zone".to_owned(), value: id.to_owned() }],
        ..Default::default()
    };
    fleet.register(id, profile).await
}

#[tokio::test]
async fn busy_workers_are_refused_with_the_time_to_retry() -> Result<()> {
    let mut fleet = Fleet::start(0, &["--queue", "threshold=0"]).await?;
    register(&mut fleet, "a", pb::WorkerRole::Both).await?;
    let busy = pb::BusyThresholds { active_prefill_tokens: Some(10), ..Default::default() };
    let set = pb::SetBusyThresholdsRequest { thresholds: Some(busy) };
    let set = fleet.router.set_busy_thresholds(set).await?.into_inner().thresholds;
    ensure!(set == Some(busy), "{set:?}");
    let first = fleet.select(request(tokens(0, 2))).await?;
    let refused = fleet.router.select_worker(request(tokens(0, 2))).await.expect_err("it is busy");
    ensure!(refused.code() == Code::ResourceExhausted, "{refused}");
    ensure!(refused.message().contains("threshold of prefill tokens"), "{refused}");
    let retry = refused.get_details_retry_info().context("retry info")?;
    ensure!(retry.retry_delay.is_some_and(|delay| delay > Duration::ZERO), "{retry:?}");

    // Over HTTP, as document 004 has it.
    let (status, page) = metrics::get(fleet.process.addresses.http, "/busy_threshold").await?;
    ensure!(status == 200 && page.contains("\"active_prefill_tokens_threshold\":10"), "{page}");
    let http = fleet.process.addresses.http;
    let sent = "{\"active_prefill_tokens_threshold\": 20}";
    let (status, page) = metrics::post(http, "/busy_threshold", sent).await?;
    ensure!(status == 200 && page.contains("\"active_prefill_tokens_threshold\":20"), "{page}");
    let now = fleet.router.get_busy_thresholds(pb::GetBusyThresholdsRequest {}).await?.into_inner();
    let limit = now.thresholds.and_then(|at| at.active_prefill_tokens);
    ensure!(limit == Some(20), "{limit:?}");
    for (bad, text) in [
        ("{\"tokens\": 1}", "unknown field"),
        ("{\"active_prefill_tokens_threshold\": 0}", "more than 0"),
    ] {
        let (status, page) = metrics::post(http, "/busy_threshold", bad).await?;
        ensure!(status == 400 && page.contains(text), "{status} {page}");
    }
    let bad = pb::BusyThresholds { active_decode_blocks: Some(-1.0), ..Default::default() };
    let bad = pb::SetBusyThresholdsRequest { thresholds: Some(bad) };
    let status = fleet.router.set_busy_thresholds(bad).await.expect_err("negative");
    ensure!(status.code() == Code::InvalidArgument, "{status}");
    let none = pb::SetBusyThresholdsRequest { thresholds: Some(pb::BusyThresholds::default()) };
    fleet.router.set_busy_thresholds(none).await?;
    fleet.select(request(tokens(0, 2))).await?;
    fleet.router.free(free(&first.request_id)).await?;
    let rejected =
        metrics::sum(fleet.process.addresses.http, "router_rejections_total", "busy").await?;
    ensure!(rejected == 1.0, "{rejected}");
    fleet.stop().await;
    Ok(())
}

#[tokio::test]
async fn requests_wait_in_the_queue_and_leave_it() -> Result<()> {
    let mut fleet = Fleet::start(0, &["--queue", "threshold=1,entries=2"]).await?;
    register(&mut fleet, "a", pb::WorkerRole::Both).await?;
    let first = fleet.select(request(tokens(0, 5))).await?;
    ensure!(!first.queued, "{first:?}");
    let wait = |fleet: &Fleet, number: u32| {
        let mut router = fleet.router.clone();
        let request = request(tokens(number * 1_000, 5));
        tokio::runtime::Handle::current().spawn(async move {
            router.select_worker(request).await.map(tonic::Response::into_inner)
        })
    };
    let second = wait(&fleet, 2);
    waiting(&fleet, 1).await?;
    let third = wait(&fleet, 3);
    waiting(&fleet, 2).await?;
    let full = fleet.router.select_worker(request(tokens(0, 5))).await.expect_err("it is full");
    ensure!(
        full.code() == Code::ResourceExhausted && full.message().contains("queue is full"),
        "{full}"
    );
    // Who hangs up leaves.
    second.abort();
    waiting(&fleet, 1).await?;
    let late = pb::SelectWorkerRequest { queue_timeout_ms: Some(50), ..request(tokens(0, 5)) };
    let late = fleet.router.select_worker(late).await.expect_err("it waits no longer");
    ensure!(late.code() == Code::ResourceExhausted && late.message().contains("50ms"), "{late}");
    let model = MODEL.to_owned();
    let request_id = first.request_id;
    let done = pb::MarkPrefillCompletedRequest { model, request_id, ..Default::default() };
    fleet.router.mark_prefill_completed(done).await?;
    let third = timeout(PATIENCE, third).await???;
    ensure!(third.queued && third.queue_position == 1, "{third:?}");
    ensure!(third.overhead.is_some_and(|at| at.queue_us > 0), "{third:?}");
    fleet.stop().await;
    Ok(())
}

/// Waits until so many requests wait.
async fn waiting(fleet: &Fleet, count: u32) -> Result<()> {
    let mut router = fleet.router.clone();
    until("they wait", async || {
        let loads = router.get_loads(pb::GetLoadsRequest::default()).await?.into_inner();
        Ok((loads.queued_requests == count).then_some(()))
    })
    .await
}

#[tokio::test]
async fn reports_pass_however_many_requests_wait_on_their_connection() -> Result<()> {
    /// More than most servers let wait on one connection.
    const WAITING: u32 = 300;
    let mut fleet = Fleet::start(0, &["--queue", "threshold=1"]).await?;
    register(&mut fleet, "a", pb::WorkerRole::Both).await?;
    let first = fleet.select(request(tokens(0, 5))).await?;
    let mut requests = JoinSet::new();
    for number in 1..=WAITING {
        let mut router = fleet.router.clone();
        let request = request(tokens(number * 1_000, 1));
        requests.spawn(async move { router.select_worker(request).await });
    }
    waiting(&fleet, WAITING).await?;
    // They wait for 20 s at most: whoever leaves sooner was released by this report.
    fleet.router.free(free(&first.request_id)).await?;
    let released = timeout(PATIENCE, requests.join_next()).await?.context("a request")???;
    ensure!(released.into_inner().queued, "it waited");
    requests.shutdown().await;
    waiting(&fleet, 0).await?;
    fleet.stop().await;
    Ok(())
}

#[tokio::test]
async fn who_is_sensitive_to_latency_leaves_the_queue_first() -> Result<()> {
    let mut fleet = Fleet::start(0, &["--queue", "threshold=1"]).await?;
    register(&mut fleet, "a", pb::WorkerRole::Both).await?;
    let first = fleet.select(request(tokens(0, 5))).await?;
    let mut requests = JoinSet::new();
    for (number, latency_sensitivity) in [(1, 0.0), (2, 60.0)] {
        let request_id = number.to_string();
        let wanted = request(tokens(number * 1_000, 5));
        let wanted = pb::SelectWorkerRequest { request_id, latency_sensitivity, ..wanted };
        let mut router = fleet.router.clone();
        requests.spawn(async move { router.select_worker(wanted).await });
        waiting(&fleet, number).await?;
    }
    fleet.router.free(free(&first.request_id)).await?;
    let released = timeout(PATIENCE, requests.join_next()).await?.context("a request")???;
    ensure!(released.into_inner().request_id == "2", "it counts as come a minute earlier");
    requests.shutdown().await;
    fleet.stop().await;
    Ok(())
}

#[tokio::test]
async fn output_counts_less_the_nearer_it_is_to_its_expected_end() -> Result<()> {
    let mut fleet = Fleet::start(0, &["--load", "track-blocks=prompt-and-output"]).await?;
    register(&mut fleet, "a", pb::WorkerRole::Both).await?;
    let expected =
        pb::SelectWorkerRequest { expected_output_tokens: Some(64), ..request(tokens(0, 4)) };
    let request_id = fleet.select(expected).await?.request_id;
    for (output_tokens, blocks) in [(16, 4.75), (32, 5.0), (64, 4.0)] {
        let model = MODEL.to_owned();
        let request_id = request_id.clone();
        let report =
            pb::ReportOutputRequest { model, request_id, output_tokens, ..Default::default() };
        fleet.router.report_output(report).await?;
        let loads = fleet.router.get_loads(pb::GetLoadsRequest::default()).await?.into_inner();
        let load = loads.ranks.first().and_then(|at| at.routed).context("its load")?;
        ensure!((load.active_blocks - blocks).abs() < 1e-9, "{output_tokens} tokens: {load:?}");
    }
    fleet.stop().await;
    Ok(())
}

#[tokio::test]
async fn roles_and_labels_filter_and_prefill_workers_are_a_pool_of_their_own() -> Result<()> {
    let mut fleet = Fleet::start(0, &["--queue", "threshold=0"]).await?;
    register(&mut fleet, "p", pb::WorkerRole::Prefill).await?;
    register(&mut fleet, "d", pb::WorkerRole::Decode).await?;
    register(&mut fleet, "e", pb::WorkerRole::Decode).await?;
    let prefill = pb::SelectWorkerRequest {
        roles: vec![pb::WorkerRole::Prefill.into()],
        ..request(tokens(0, 4))
    };
    let chosen = fleet.select(prefill).await?;
    ensure!(chosen.worker_id == "p", "{chosen:?}");
    let pinned = Some(pb::PinnedWorker { worker_id: "p".to_owned(), dp_rank: None });
    let pinned = pb::SelectWorkerRequest { pinned, dry_run: true, ..request(tokens(0, 4)) };
    ensure!(fleet.select(pinned).await?.worker_id == "p", "a pin reaches the pool");
    let loads = fleet.router.get_loads(pb::GetLoadsRequest::default()).await?.into_inner();
    let routed = loads.ranks.iter().find(|at| at.worker_id == "p").and_then(|at| at.routed);
    let routed = routed.context("its load")?;
    ensure!(routed.requests == 1 && routed.prefill_tokens == 64, "{routed:?}");
    ensure!(routed.active_blocks == 0.0, "a prefill pool never tracks blocks: {routed:?}");
    for _ in 0..4 {
        let plain = fleet.select(request(tokens(0, 4))).await?;
        ensure!(plain.worker_id != "p", "{plain:?}");
        let label = pb::Label { key: "zone".to_owned(), value: "e".to_owned() };
        let there =
            pb::SelectWorkerRequest { required_labels: vec![label], ..request(tokens(0, 4)) };
        let there = fleet.select(there).await?;
        ensure!(there.worker_id == "e", "{there:?}");
    }
    fleet.router.free(free(&chosen.request_id)).await?;
    fleet.stop().await;
    Ok(())
}

#[tokio::test]
async fn requests_of_clients_that_vanished_end_with_their_lease() -> Result<()> {
    let mut fleet = Fleet::start(1, &["--timing", "request-lease=1s"]).await?;
    fleet.select(request(tokens(0, 4))).await?;
    let mut router = fleet.router.clone();
    until("the lease ends", async || {
        let loads = crate::fleet::loads(&mut router).await?;
        Ok(loads.iter().all(|(_, requests)| *requests == 0).then_some(()))
    })
    .await?;
    let expired =
        metrics::sum(fleet.process.addresses.http, "router_expired_requests_total", "").await?;
    ensure!(expired == 1.0, "{expired}");
    fleet.stop().await;
    Ok(())
}

#[tokio::test]
async fn the_prompts_of_a_tenants_waiting_requests_are_bounded_in_bytes() -> Result<()> {
    /// Half of what prompts may take together, which is a tenant's part.
    const TENANT_BYTES_MAX: usize = 128 << 20;
    const BLOCKS: usize = 65_536;
    let mut fleet = Fleet::start(0, &["--queue", "threshold=1"]).await?;
    register(&mut fleet, "a", pb::WorkerRole::Both).await?;
    let first = fleet.select(request(tokens(0, 5))).await?;
    let long = |first: u64| pb::SelectWorkerRequest {
        local_hashes: (first..).take(BLOCKS).collect(),
        input_tokens: Some((BLOCKS * 16) as u64),
        ..request(Vec::new())
    };
    let fitting = TENANT_BYTES_MAX / (BLOCKS * 8);
    let mut requests = JoinSet::new();
    for number in 0..fitting {
        let mut router = fleet.router.clone();
        let request = long(number as u64);
        requests.spawn(async move { router.select_worker(request).await });
    }
    waiting(&fleet, u32::try_from(fitting)?).await?;
    let refused = fleet.router.select_worker(long(0)).await.expect_err("it is one too many");
    ensure!(refused.code() == Code::ResourceExhausted, "{refused}");
    ensure!(refused.message().contains("queue is full"), "{refused}");
    ensure!(refused.get_details_retry_info().is_some(), "{refused:?}");
    requests.shutdown().await;
    waiting(&fleet, 0).await?;
    let small = fleet.select(pb::SelectWorkerRequest { dry_run: true, ..long(0) }).await?;
    ensure!(small.worker_id == "a", "{small:?}");
    fleet.router.free(free(&first.request_id)).await?;
    fleet.stop().await;
    Ok(())
}

/// `track-blocks=off` counts no blocks, `kv-reuse=unique` those that two requests share twice.
#[tokio::test]
async fn options_say_which_blocks_count() -> Result<()> {
    for (flags, expected) in [
        (&["--load", "kv-reuse=assumed"][..], 4.0),
        (&["--load", "kv-reuse=unique"][..], 8.0),
        (&["--load", "track-blocks=off"][..], 0.0),
    ] {
        let mut fleet = Fleet::start(0, flags).await?;
        register(&mut fleet, "a", pb::WorkerRole::Both).await?;
        for _ in 0..2 {
            fleet.select(request(tokens(0, 4))).await?;
        }
        let loads = fleet.router.get_loads(pb::GetLoadsRequest::default()).await?.into_inner();
        let routed = loads.ranks.into_iter().find_map(|at| at.routed).context("a rank")?;
        ensure!(routed.active_blocks == expected, "{flags:?}: {routed:?}");
        fleet.stop().await;
    }
    Ok(())
}
