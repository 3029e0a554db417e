//! Where tokens come from if engines do not render, which adapters they name, and what the API port shows beside the API.

use crate::fake::{Behaviour, Fake, tokens};
use crate::fleet::{
    BLOCK_SIZE, FAST, Fleet, MODEL, PATIENCE, cached, engine, profile, prompt, tokenizer, until,
};
use anyhow::{Context, Result, ensure};
use hyper::Method;
use kvasir_proto::pb::{self, WorkerRole};
use kvasir_sim::client;
use kvasir_sim::demo::metrics;
use kvasir_sim::engine::openai::ServerConfig;
use kvasir_sim::engine::openai::client::call;
use kvasir_sim::server::Server;
use serde_json::{Value, json};
use std::fs;

/// Workers that came later are chosen like the others.
const ALIKE: [&str; 2] = ["--worker-health", "slow-start=0s"];

async fn ready(fleet: &Fleet) -> Result<String> {
    Ok(metrics::get(fleet.gateway.addresses.http, "/readyz").await?.1)
}

/// A page of the API port: status and text.
async fn page(fleet: &Fleet, method: Method, path: &str, body: &str) -> Result<(u16, String)> {
    let at = fleet.gateway.addresses.grpc;
    let host = at.ip().to_string();
    let answer = call(method, (&host, at.port()), path, body.to_owned(), PATIENCE).await?;
    Ok((answer.0.as_u16(), String::from_utf8(answer.1.to_vec())?))
}

/// A gateway before fake engines.
async fn fakes(behaviours: Vec<Behaviour>, flags: &[&str]) -> Result<(Fleet, Vec<Fake>)> {
    let mut fleet = Fleet::start(Vec::new(), flags).await?;
    let mut fakes = Vec::new();
    for (number, behaviour) in behaviours.into_iter().enumerate() {
        let fake = Fake::start(behaviour).await?;
        let profile = profile(WorkerRole::Both, fake.address);
        fleet.register(&format!("w{number}"), profile, Vec::new()).await?;
        fakes.push(fake);
    }
    Ok((fleet, fakes))
}

#[tokio::test]
async fn where_render_is_closed_tokenize_makes_the_same_tokens() -> Result<()> {
    let closed = || ServerConfig { is_render_closed: true, ..engine(FAST) };
    let engines = vec![(WorkerRole::Both, closed()), (WorkerRole::Both, closed())];
    let mut fleet = Fleet::start(engines, &[]).await?;
    fleet.ask("answers").await?;
    fleet.exact().await?;
    // Six times the same: five hit, as each worker is chosen for what it has.
    let mut hits = 0;
    for _ in 0..6 {
        hits += u32::from(cached(&fleet.complete(&prompt("same")).await?) > 0);
        fleet.exact().await?;
    }
    ensure!(hits == 5, "{hits} hits: {}", fleet.gateway.output());
    ensure!(fleet.metric("gateway_tokens_total", "not_rendered").await? == 0.0);
    ensure!(fleet.metric("gateway_token_mismatches_found_total", "").await? == 0.0);
    ensure!(
        fleet
            .metric("gateway_token_servers", "endpoint=\"tokenize\",render_status=\"403\"")
            .await?
            > 0.0
    );
    let text = ready(&fleet).await?;
    ensure!(text.contains("/render answers 403") && text.contains("--enable-scale-out"), "{text}");
    let log = fleet.gateway.output();
    ensure!(log.matches("tokens of prompts come from /tokenize").count() == 1, "{log}");
    fleet.stop().await
}

#[tokio::test]
async fn where_nothing_makes_tokens_operators_learn_of_it() -> Result<()> {
    for status in [403, 404, 405] {
        let closed =
            Behaviour { render: Some(status), tokenize: Some(404), ..Behaviour::default() };
        let (fleet, fakes) = fakes(vec![closed], &[]).await?;
        for number in 0..10 {
            fleet.complete(&prompt(&number.to_string())).await?;
        }
        ensure!(fleet.metric("gateway_tokens_total", "not_rendered").await? == 10.0);
        let labels = format!("endpoint=\"none\",render_status=\"{status}\"");
        ensure!(fleet.metric("gateway_token_servers", &labels).await? == 1.0);
        let text = ready(&fleet).await?;
        ensure!(text.contains("no tokens of prompts come from 1 servers"), "{text}");
        ensure!(text.contains("not_rendered"), "{text}");
        let log = fleet.gateway.output();
        ensure!(log.matches("the tokens of a prompt are not known").count() == 1, "{log}");
        ensure!(log.matches("the server makes no tokens of prompts").count() == 1, "{log}");
        // Requests do not pay for it.
        let [fake] = fakes.as_slice() else { unreachable!("one engine") };
        ensure!((fake.calls("render"), fake.calls("tokenize")) == (1, 1));
        fleet.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_server_that_fails_is_no_closed_endpoint() -> Result<()> {
    let failing = Behaviour { render: Some(500), ..Behaviour::default() };
    let (fleet, fakes) = fakes(vec![failing], &[]).await?;
    let [fake] = fakes.as_slice() else { unreachable!("one engine") };
    fleet.complete(&prompt("a")).await?;
    ensure!(fake.calls("tokenize") == 0 && fake.calls("render") == 1);
    ensure!(ready(&fleet).await?.contains("status 500"));
    fake.change(Behaviour::default());
    fleet.complete(&prompt("a")).await?;
    ensure!(fleet.metric("gateway_tokens_total", "known").await? == 1.0);
    ensure!(fleet.metric("gateway_token_servers", "render_status=\"200\"").await? == 1.0);
    fleet.stop().await
}

#[tokio::test]
async fn all_prompts_of_a_completion_count_and_cut_ones_as_the_engine_cuts_them() -> Result<()> {
    let closed = Behaviour { render: Some(403), ..Behaviour::default() };
    for behaviour in [Behaviour::default(), closed.clone()] {
        let (fleet, _fakes) = fakes(vec![behaviour], &[]).await?;
        let body = json!({"model": MODEL, "prompt": ["x".repeat(100), "y".repeat(50)]});
        ensure!(fleet.post("/v1/completions", &body).await?.0 == 200);
        ensure!(fleet.metric("router_input_tokens_sum", "").await? == 150.0);
        fleet.stop().await?;
    }
    let (mut fleet, fakes) = fakes(vec![closed.clone(), closed], &ALIKE).await?;
    let text = prompt("cut");
    let all = tokens(&text);
    let kept = all.get(all.len() - 64..).context("a long prompt")?;
    place(&mut fleet, "w1", "", kept).await?;
    let plain = json!({"truncate_prompt_tokens": 64, "add_special_tokens": false});
    let special = json!({"truncate_prompt_tokens": 64});
    let engines_limit = json!({"truncate_prompt_tokens": -1});
    let mut served = Vec::new();
    for fields in [&plain, &plain, &plain, &special, &engines_limit] {
        let mut body = json!({"model": MODEL, "prompt": text, "max_tokens": 1});
        for (name, value) in fields.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        served.push(serve(&fleet, &fakes, &body).await?);
    }
    ensure!(served.starts_with(&[1, 1, 1]), "{served:?}");
    // Which of a text's tokens are special ones, only its tokenizer knows.
    ensure!(fleet.metric("gateway_tokens_total", "truncated").await? == 2.0);
    fleet.stop().await
}

/// A rank is to have a prompt.
async fn place(fleet: &mut Fleet, worker: &str, adapter: &str, tokens: &[u32]) -> Result<()> {
    let request = pb::RecordPlacementRequest {
        model: MODEL.to_owned(),
        worker_id: worker.to_owned(),
        lora_name: adapter.to_owned(),
        block_size: Some(u32::try_from(BLOCK_SIZE)?),
        token_ids: tokens.to_vec(),
        ..Default::default()
    };
    fleet.indexer.record_placement(request).await?;
    Ok(())
}

/// The number of the engine that serves a completion.
async fn serve(fleet: &Fleet, fakes: &[Fake], body: &Value) -> Result<usize> {
    let counts = || fakes.iter().map(|fake| fake.calls("complete")).collect::<Vec<_>>();
    let before = counts();
    let (status, answer) = fleet.post("/v1/completions", body).await?;
    ensure!(status == 200, "{status}: {answer}\n{}", fleet.gateway.output());
    let after = counts();
    let served = before.iter().zip(&after).position(|(before, after)| before < after);
    served.context("no engine has served it")
}

/// Waits until the gateway has every engine's list of models: it asks again only after the answer.
async fn all_have_answered(fakes: &[Fake]) -> Result<()> {
    until("all engines have answered", async || {
        Ok(fakes.iter().all(|fake| fake.calls("models") > 1).then_some(()))
    })
    .await
}

#[tokio::test]
async fn adapters_that_engines_name_are_models() -> Result<()> {
    let with = |adapters: &[&'static str]| Behaviour {
        adapters: adapters.to_vec(),
        // Prompts of an adapter have the tokens of its model.
        renders_no_adapter: true,
        ..Behaviour::default()
    };
    let behaviours = vec![with(&["ada"]), with(&["ada", "bob"]), with(&[])];
    let (mut fleet, fakes) = fakes(behaviours, &ALIKE).await?;
    let models = async |fleet: &Fleet| page(fleet, Method::GET, "/v1/models", "").await;
    until("the adapters are known", async || {
        Ok(models(&fleet).await?.1.contains("\"bob\"").then_some(()))
    })
    .await?;
    all_have_answered(&fakes).await?;
    // Each server answers that it does not know an adapter once. Then it is asked by the model's name, at once.
    let rendered = || fakes.iter().map(|fake| fake.calls("render")).sum::<usize>();
    let before = rendered();
    for number in 0..8 {
        let text = prompt(&number.to_string());
        let body = json!({"model": "bob", "prompt": text, "max_tokens": 1});
        ensure!(serve(&fleet, &fakes, &body).await? == 1);
    }
    let calls = rendered() - before;
    ensure!(calls <= 8 + fakes.len(), "8 prompts took {calls} calls of /render");
    let body = |model: &str| json!({"model": model, "prompt": prompt("same"), "max_tokens": 1});
    for _ in 0..4 {
        ensure!(serve(&fleet, &fakes, &body("bob")).await? == 1);
        ensure!(serve(&fleet, &fakes, &body("ada")).await? != 2);
    }
    // Blocks of an adapter are its own.
    place(&mut fleet, "w1", "ada", &tokens(&prompt("same"))).await?;
    place(&mut fleet, "w2", "", &tokens(&prompt("same"))).await?;
    for _ in 0..4 {
        ensure!(serve(&fleet, &fakes, &body("ada")).await? == 1);
        ensure!(serve(&fleet, &fakes, &body(MODEL)).await? == 2);
    }
    let (status, error) = fleet.post("/v1/completions", &body("cyd")).await?;
    ensure!(status == 404, "{status}: {error}");
    let [_, second, _] = fakes.as_slice() else { unreachable!("three engines") };
    second.change(with(&["ada"]));
    until("an adapter that is unloaded is no model", async || {
        Ok((!models(&fleet).await?.1.contains("\"bob\"")).then_some(()))
    })
    .await?;
    fleet.stop().await
}

#[tokio::test]
async fn further_names_of_a_model_share_its_blocks() -> Result<()> {
    let with = |names: &[&'static str]| Behaviour { names: names.to_vec(), ..Behaviour::default() };
    let behaviours = vec![with(&["large"]), with(&[]), with(&["large", "latest"])];
    let (mut fleet, fakes) = fakes(behaviours, &ALIKE).await?;
    until("the names are known", async || {
        let (_, models) = page(&fleet, Method::GET, "/v1/models", "").await?;
        Ok((models.contains("\"large\"") && models.contains("\"latest\"")).then_some(()))
    })
    .await?;
    all_have_answered(&fakes).await?;
    let body = |model: &str| json!({"model": model, "prompt": prompt("same"), "max_tokens": 1});
    for _ in 0..4 {
        ensure!(serve(&fleet, &fakes, &body("large")).await? != 1);
        ensure!(serve(&fleet, &fakes, &body("latest")).await? == 2);
    }
    place(&mut fleet, "w0", "", &tokens(&prompt("same"))).await?;
    for _ in 0..4 {
        ensure!(serve(&fleet, &fakes, &body("large")).await? == 0);
        ensure!(serve(&fleet, &fakes, &body(MODEL)).await? == 0);
    }
    let (status, error) = fleet.post("/v1/completions", &body("small")).await?;
    ensure!(status == 404, "{status}: {error}");
    // A name that is another model's is shown: that model alone gets its requests.
    let registration = pb::RegisterWorkerRequest {
        worker_id: "other".to_owned(),
        model: "latest".to_owned(),
        block_size: u32::try_from(BLOCK_SIZE)?,
        ..Default::default()
    };
    fleet.indexer.register_worker(registration).await?;
    until("the shared name is shown", async || {
        let (_, text) = metrics::get(fleet.gateway.addresses.http, "/readyz").await?;
        Ok(text.contains("also serves it as latest").then_some(()))
    })
    .await?;
    fleet.stop().await
}

#[tokio::test]
async fn the_tokenizer_of_a_model_serves_its_adapters_and_names() -> Result<()> {
    let behaviour =
        Behaviour { adapters: vec!["ada"], names: vec!["large"], ..Behaviour::default() };
    let file = format!("{MODEL}={}", tokenizer().display());
    let (fleet, fakes) = fakes(vec![behaviour], &["--tokenizer", &file]).await?;
    all_have_answered(&fakes).await?;
    for model in [MODEL, "ada", "large"] {
        let body = json!({"model": model, "prompt": prompt("same"), "max_tokens": 1});
        ensure!(serve(&fleet, &fakes, &body).await? == 0, "{model}");
    }
    let known = fleet.metric("gateway_tokens_total", "known").await?;
    ensure!(known == 3.0, "{known}: {}", fleet.gateway.output());
    fleet.stop().await
}

#[tokio::test]
async fn the_api_port_has_health_metrics_and_thresholds() -> Result<()> {
    let (fleet, _fakes) = fakes(vec![Behaviour::default()], &["--tokens", "none"]).await?;
    ensure!(page(&fleet, Method::GET, "/health", "").await?.0 == 200);
    fleet.complete(&prompt("a")).await?;
    let (status, text) = page(&fleet, Method::GET, "/metrics", "").await?;
    ensure!(status == 200 && text.contains("kvasir_gateway_requests_total{"), "{text}");
    ensure!(text.ends_with("# EOF\n"), "{text}");
    let wanted = "{\"active_decode_blocks_threshold\":0.5}";
    let (status, text) = page(&fleet, Method::POST, "/busy_threshold", wanted).await?;
    ensure!(status == 200, "{status}: {text}");
    let (status, text) = page(&fleet, Method::GET, "/busy_threshold", "").await?;
    ensure!(status == 200 && text.contains("\"active_decode_blocks_threshold\":0.5"), "{text}");
    ensure!(metrics::get(fleet.gateway.addresses.http, "/busy_threshold").await?.1 == text);
    fleet.stop().await
}

#[tokio::test]
async fn a_gateway_that_has_no_workers_listed_is_not_healthy() -> Result<()> {
    let nowhere = ["--indexer", "127.0.0.1:9", "--timing", "discovery-interval=100ms"];
    let mut gateway = Server::gateway(&nowhere).await?;
    let at = gateway.addresses.grpc;
    let host = at.ip().to_string();
    let answer = call(Method::GET, (&host, at.port()), "/health", "", PATIENCE).await?;
    ensure!(answer.0.as_u16() == 503, "{answer:?}");
    gateway.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_gateway_without_engines_says_so() -> Result<()> {
    for (engines, is_said) in [(Vec::new(), true), (vec![Behaviour::default()], false)] {
        let (fleet, _fakes) = fakes(engines, &[]).await?;
        let text = ready(&fleet).await?;
        let found = text.contains("No engine is registered at the index\n");
        ensure!(found == is_said, "{text}");
        fleet.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn engines_that_demand_a_key_get_it_from_a_file_that_may_change() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("key");
    fs::write(&file, "key 1\n")?;
    let with = |key| Behaviour { key: Some(key), ..Behaviour::default() };
    let path = file.display().to_string();
    let behaviours = vec![with("key 1"), with("key 1")];
    let (fleet, fakes) = fakes(behaviours, &["--engine-key-file", &path]).await?;
    let [first, second] = fakes.as_slice() else { unreachable!("two engines") };
    fleet.complete(&prompt("a")).await?;
    ensure!(fleet.metric("gateway_tokens_total", "known").await? == 1.0, "rendered with the key");
    ensure!(first.calls("unauthorized") + second.calls("unauthorized") == 0);

    // The key is the gateway's affair: another engine is tried, and clients do not learn that their key is wrong.
    first.change(with("key 2"));
    until("a request that the first engine refuses", async || {
        fleet.complete(&prompt("b")).await?;
        Ok((first.calls("unauthorized") > 0).then_some(()))
    })
    .await?;
    second.change(with("key 2"));
    let body = json!({"model": MODEL, "prompt": prompt("c"), "max_tokens": 4});
    let (status, answer) = fleet.post("/v1/completions", &body).await?;
    let says = answer.to_string().contains("--engine-key-file");
    ensure!(status == 502 && says, "{status} {answer}\n{}", fleet.gateway.output());
    fs::write(&file, "key 2\n")?;
    until("the new key", async || {
        let (status, _) = fleet.post("/v1/completions", &body).await?;
        Ok((status == 200).then_some(()))
    })
    .await?;
    let log = fleet.gateway.output();
    ensure!(!log.contains("key 1") && !log.contains("key 2"), "{log}");
    fleet.stop().await
}

/// An empty fleet is asked for often, whatever the interval: someone waits for the first engine.
#[tokio::test]
async fn the_first_engine_is_known_at_once() -> Result<()> {
    let server = Server::start_anywhere().await?;
    let indexer = client::connect(server.addresses.grpc).await?;
    let index = server.addresses.grpc.to_string();
    let flags = ["--indexer", &index, "--timing", "discovery-interval=1h"];
    let gateway = Server::gateway(&flags).await?;
    metrics::ready(gateway.addresses.http).await.with_context(|| gateway.output())?;
    let mut fleet = Fleet { server, indexer, engines: Vec::new(), gateway };
    let fake = Fake::start(Behaviour::default()).await?;
    // This waits until the gateway knows the engine.
    fleet.register("w0", profile(WorkerRole::Both, fake.address), Vec::new()).await?;
    fleet.stop().await
}
