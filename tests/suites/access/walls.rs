//! Tenants of one server are as far apart as on servers of their own.

use crate::calls::Caller;
use crate::fixture;
use crate::play::{Callers, Step};
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_sim::server::Server;
use prost::Message;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tonic::Code;

/// Random plays.
const SEEDS: u64 = 6;
/// Steps of each.
const STEPS: u64 = 250;

async fn callers(server: &Server, tokens: Option<[&str; 2]>) -> Result<Callers> {
    let address = server.addresses.grpc;
    let [query, publish] = tokens.map_or([None; 2], |tokens| tokens.map(Some));
    let query = Caller::connect(address, query).await?;
    let publish = Caller::connect(address, publish).await?;
    Ok(Callers { query, publish })
}

#[tokio::test]
async fn two_tenants_of_one_server_see_what_they_would_see_on_two_servers() -> Result<()> {
    for seed in 0..SEEDS {
        let (mut shared, _folder) = fixture::index(&[]).await?;
        let mut alone = [Server::start_anywhere().await?, Server::start_anywhere().await?];
        let together = [
            callers(&shared, Some(["query-a", "publish-a"])).await?,
            callers(&shared, Some(["query-b", "publish-b"])).await?,
        ];
        let apart = [callers(&alone[0], None).await?, callers(&alone[1], None).await?];
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut answered = 0;
        for number in 1..=STEPS {
            let step = Step::random(number, &mut rng);
            let at = usize::from(rng.random::<bool>());
            let tenant = ["a", "b"][at];
            let context = || format!("seed {seed}, step {number} of tenant {tenant}: {step:?}");
            let here = step.play(&together[at], tenant).await.with_context(context)?;
            let there = step.play(&apart[at], tenant).await.with_context(context)?;
            ensure!(here == there, "{}\ntogether: {here}\napart: {there}", context());
            answered += usize::from(here.contains("matched_blocks: "));
        }
        ensure!(answered > 0, "seed {seed}: no query found anything");
        shared.stop().await;
        for server in &mut alone {
            server.stop().await;
        }
    }
    Ok(())
}

/// Every call that names a tenant, for one tenant.
fn calls_of(tenant: &str) -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let own = tenant.to_owned();
    let model = "m1".to_owned();
    let worker_id = "w0".to_owned();
    let find = pb::FindMatchesRequest {
        model: model.clone(),
        tenant: own.clone(),
        local_hashes: vec![1],
        ..Default::default()
    };
    let other_size = pb::FindMatchesRequest { block_size: Some(99), ..find.clone() };
    let dump = pb::DumpWorkerRequest {
        model: model.clone(),
        tenant: own.clone(),
        worker_id: worker_id.clone(),
        ..Default::default()
    };
    let register = pb::RegisterWorkerRequest {
        worker_id: worker_id.clone(),
        model: model.clone(),
        tenant: own.clone(),
        block_size: 99,
        ..Default::default()
    };
    let remove = pb::RemoveWorkerRequest {
        worker_id: worker_id.clone(),
        model: model.clone(),
        tenant: own.clone(),
    };
    let place = pb::RecordPlacementRequest {
        worker_id: worker_id.clone(),
        model: model.clone(),
        tenant: own.clone(),
        local_hashes: vec![1],
        ..Default::default()
    };
    let reused = pb::ReusedTokens { prompt_tokens: 1, expected_tokens: 0, cached_tokens: 0 };
    let report = pb::ReportReuseRequest {
        worker_id: worker_id.clone(),
        model: model.clone(),
        tenant: own.clone(),
        requests: vec![reused],
        ..Default::default()
    };
    let hello = pb::PublishHello {
        model,
        tenant: own,
        worker_id,
        source: "s".to_owned(),
        block_size: 4,
        incarnation: vec![7; 16].into(),
        ..Default::default()
    };
    let message = Some(pb::publish_events_request::Message::Hello(hello));
    let publish = pb::PublishEventsRequest { message };
    vec![
        ("query-a", "Indexer/FindMatches", find.encode_to_vec()),
        ("query-a", "Indexer/FindMatches", other_size.encode_to_vec()),
        ("query-a", "Indexer/FindMatchesStream", find.encode_to_vec()),
        ("query-a", "Indexer/DumpWorker", dump.encode_to_vec()),
        ("admin-a", "Indexer/DumpWorker", dump.encode_to_vec()),
        ("publish-a", "Indexer/RegisterWorker", register.encode_to_vec()),
        ("admin-a", "Indexer/RegisterWorker", register.encode_to_vec()),
        ("publish-a", "Indexer/RemoveWorker", remove.encode_to_vec()),
        ("admin-a", "Indexer/RemoveWorker", remove.encode_to_vec()),
        ("query-a", "Indexer/RecordPlacement", place.encode_to_vec()),
        ("publish-a", "Indexer/ReportReuse", report.encode_to_vec()),
        ("publish-a", "EventIngest/PublishEvents", publish.encode_to_vec()),
    ]
}

/// What a call answers, in words, with the code of an error in a stream of queries beside that of a call.
async fn outcome(caller: &Caller, path: &str, message: &[u8]) -> Result<(Code, String)> {
    let path = format!("/kvasir.v1.{path}");
    match caller.call_all(&path, &[message.to_vec()]).await {
        Err(status) => Ok((status.code(), status.message().to_owned())),
        Ok(answers) => {
            let answer = answers.first().context("no answer")?;
            let answer = pb::FindMatchesStreamResponse::decode(answer.clone())?;
            match answer.outcome {
                Some(pb::find_matches_stream_response::Outcome::Error(error)) => {
                    Ok((error.code.into(), error.message))
                }
                other => anyhow::bail!("{path} was answered: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn another_tenants_worker_is_denied_like_one_that_is_not_there() -> Result<()> {
    let (mut index, _folder) = fixture::index(&[]).await?;
    let owner = callers(&index, Some(["query-b", "publish-b"])).await?;
    for (worker, model) in [("w0", "m1"), ("w1", "m1"), ("w0", "m2")] {
        let step = Step::Register { worker, model, block_size: 4, replace: false };
        step.play(&owner, "b").await?;
    }
    let caller = Caller::connect(index.addresses.grpc, None).await?;
    let there = calls_of("b");
    let nowhere = calls_of("c");
    for ((token, path, of_b), (_, _, of_c)) in there.iter().zip(&nowhere) {
        let caller = caller.authorized(&format!("Bearer {token}"));
        let (code, text) = outcome(&caller, path, of_b).await?;
        ensure!(code == Code::PermissionDenied, "{path} as {token}: {code:?} {text}");
        let (other_code, other_text) = outcome(&caller, path, of_c).await?;
        let as_of_b = other_text.replace("tenant \"c\"", "tenant \"b\"");
        ensure!((code, &text) == (other_code, &as_of_b), "{path}: {text} or {other_text}");
        ensure!(!text.contains("m2") && !text.contains("w1"), "{path}: {text}");
    }
    // Nothing happened to b's workers.
    let listed = Step::List { page_size: 9 }.play(&owner, "b").await?;
    ensure!(listed.lines().count() == 3, "{listed}");
    let stranger = callers(&index, Some(["query-a", "publish-a"])).await?;
    ensure!(Step::List { page_size: 9 }.play(&stranger, "a").await?.is_empty());
    ensure!(Step::Stats.play(&stranger, "a").await? == "[]");
    index.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_model_that_an_identity_may_not_use_is_not_named_to_it() -> Result<()> {
    let (mut index, _folder) = fixture::index(&[]).await?;
    let owner = callers(&index, Some(["query-a", "publish-a"])).await?;
    let step = Step::Register { worker: "w0", model: "m2", block_size: 4, replace: false };
    step.play(&owner, "a").await?;
    let caller = Caller::connect(index.addresses.grpc, Some("query-a-m1")).await?;
    let (_, path, find) = calls_of("a").remove(0);
    let (code, text) = outcome(&caller, path, &find).await?;
    ensure!(code == Code::NotFound && text.contains("models of this tenant: none"), "{text}");
    let all = Caller::connect(index.addresses.grpc, Some("query-a")).await?;
    let (_, text) = outcome(&all, path, &find).await?;
    ensure!(text.contains("models of this tenant: m2"), "{text}");
    index.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_publisher_continues_no_stream_of_another() -> Result<()> {
    let (mut index, folder) = fixture::index(&[]).await?;
    let other =
        ("other-a", "roles = [\"publish\", \"query\"]\ntenants = [\"a\"]\nworkers = [\"x*\"]");
    let mut identities = fixture::IDENTITIES.to_vec();
    identities.push(other);
    fixture::write(&folder.path().join("identities.toml"), &identities)?;
    index.stop().await;
    let file = folder.path().join("identities.toml").display().to_string();
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let mut index = Server::start_with(any, any, &["--identities", &file]).await?;
    let owner = callers(&index, Some(["query-a", "publish-a"])).await?;
    let step = Step::Register { worker: "w0", model: "m1", block_size: 4, replace: false };
    step.play(&owner, "a").await?;
    let hello = calls_of("a").pop().context("the publisher's call")?;
    let own = Caller::connect(index.addresses.grpc, Some("publish-a")).await?;
    let path = format!("/kvasir.v1.{}", hello.1);
    own.call_all(&path, std::slice::from_ref(&hello.2)).await?;
    // It knows the incarnation, from the answers to queries, and may use the tenant and the model.
    let thief = Caller::connect(index.addresses.grpc, Some("other-a")).await?;
    let denied = thief.call_all(&path, &[hello.2]).await.expect_err("denied");
    ensure!(denied.code() == Code::PermissionDenied, "{denied}");
    ensure!(denied.message().contains("may not act for worker \"w0\""), "{denied}");
    index.stop().await;
    Ok(())
}

#[tokio::test]
async fn what_concerns_all_tenants_needs_an_admin_of_all() -> Result<()> {
    let folder = tempfile::TempDir::new()?;
    let checkpoints = folder.path().join("checkpoints").display().to_string();
    let (mut index, _folder) = fixture::index(&["--checkpoint-dir", &checkpoints]).await?;
    let caller = Caller::connect(index.addresses.grpc, None).await?;
    let path = "/kvasir.v1.Indexer/CreateCheckpoint";
    let request = pb::CreateCheckpointRequest::default();
    let denied =
        caller.authorized("Bearer admin-a").call(path, &request).await.expect_err("denied");
    ensure!(denied.code() == Code::PermissionDenied, "{denied}");
    caller.authorized("Bearer admin").call(path, &request).await?;
    ensure!(
        index.output().contains("CreateCheckpoint") && index.output().contains("principal"),
        "{}",
        index.output()
    );
    let stats = |token: &str| {
        let caller = caller.authorized(&format!("Bearer {token}"));
        async move {
            let answers =
                caller.call("/kvasir.v1.Indexer/GetStats", &pb::GetStatsRequest {}).await?;
            Ok::<_, anyhow::Error>(pb::GetStatsResponse::decode(answers[0].clone())?)
        }
    };
    let own = stats("admin-a").await?;
    let all = stats("query").await?;
    ensure!(
        own.counters.is_empty() && own.checkpoints.is_none() && own.index_bytes == 0,
        "{own:?}"
    );
    ensure!(!all.counters.is_empty() && all.checkpoints.is_some(), "{all:?}");
    index.stop().await;
    Ok(())
}
