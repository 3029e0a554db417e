//! Where tokens come from, and what if they are wrong.

use crate::fleet::{FAST, Fleet, cached, engine, prompt, tokenizer, until};
use anyhow::{Context, Result, anyhow, ensure};
use kvasir_proto::pb::WorkerRole;
use kvasir_sim::demo::metrics;
use kvasir_sim::engine::openai::training::train;
use serde_json::{Value, json};
use std::env;
use std::fs;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tokenizers::{AddedToken, Tokenizer};
use tokio::time::Instant;

/// Special tokens of the committed tokenizer, which its chat template writes.
const SPECIAL: [&str; 3] = ["<|begin|>", "<|end|>", "<|role|>"];
const VOCABULARY: usize = 1_024;
const TEMPLATE: &str = "{{ bos_token }}\
    {% if tools %}<|role|>tools\n{{ tools | tojson }}{{ eos_token }}{% endif %}\
    {% for message in messages %}\
    <|role|>{{ message['role'] }}\n{{ message['content'] | trim }}{{ eos_token }}\
    {% endfor %}\
    {% if add_generation_prompt %}<|role|>assistant\n{% endif %}";

/// A tokenizer that has learnt from the licence, which never changes.
fn trained() -> Result<Tokenizer> {
    let mut tokenizer = train(include_str!("../../../LICENSE"), VOCABULARY)?;
    tokenizer
        .add_special_tokens(SPECIAL.map(|token| AddedToken::from(token, true)))
        .map_err(|why| anyhow!("{why}"))?;
    Ok(tokenizer)
}

#[test]
fn the_committed_tokenizer_is_what_the_training_makes() -> Result<()> {
    let fresh = trained()?.to_string(false).map_err(|why| anyhow!("{why}"))?;
    let config =
        json!({"bos_token": SPECIAL[0], "eos_token": SPECIAL[1], "chat_template": TEMPLATE});
    let config = serde_json::to_string_pretty(&config)? + "\n";
    let beside = tokenizer().with_file_name("tokenizer_config.json");
    for (path, fresh) in [(tokenizer(), fresh + "\n"), (beside, config)] {
        if env::var_os("KVASIR_REGENERATE").is_some() {
            fs::create_dir_all(path.parent().context("a folder")?)?;
            fs::write(&path, &fresh)?;
        }
        ensure!(
            fs::read_to_string(&path)? == fresh,
            "{} is stale: run this with KVASIR_REGENERATE=1",
            path.display()
        );
    }
    Ok(())
}

#[tokio::test]
async fn engines_render_what_they_compute() -> Result<()> {
    let engines = vec![(WorkerRole::Both, engine(FAST)), (WorkerRole::Both, engine(FAST))];
    let mut fleet = Fleet::start(engines, &["--tokens", "render"]).await?;
    fleet.ask("answers").await?;
    fleet.exact().await?;
    let first = fleet.complete(&prompt("twice")).await?;
    ensure!(cached(&first) == 0, "{first}");
    fleet.exact().await?;
    let second = fleet.complete(&prompt("twice")).await?;
    ensure!(cached(&second) > 0, "{second}");
    ensure!(fleet.metric("gateway_tokens_total", "not_rendered").await? == 0.0);
    ensure!(fleet.metric("gateway_token_cache_total", "hit").await? >= 1.0);
    fleet.stop().await
}

/// A gateway with another model's tokenizer.
async fn mismatched(folder: &Path) -> Result<Fleet> {
    let file = folder.join("tokenizer.json");
    let other = train(include_str!("../../../CONTRIBUTING.md"), 600)?;
    other.save(&file, false).map_err(|why| anyhow!("{why}"))?;
    let flags = ["--tokenizer", &file.display().to_string()];
    Fleet::start(vec![(WorkerRole::Both, engine(FAST))], &flags).await
}

async fn ready(fleet: &Fleet) -> Result<String> {
    Ok(metrics::get(fleet.gateway.addresses.http, "/readyz").await?.1)
}

#[tokio::test]
async fn tokens_that_are_not_the_engines_are_noticed() -> Result<()> {
    let folder = TempDir::new()?;
    let fleet = mismatched(folder.path()).await?;
    ensure!(!ready(&fleet).await?.contains("tokens"), "nothing is known yet");
    until("the mismatch is noticed", async || {
        fleet.complete(&prompt("again and again")).await?;
        Ok((fleet.metric("gateway_token_mismatches", "").await? == 1.0).then_some(()))
    })
    .await?;
    let text = ready(&fleet).await?;
    ensure!(text.contains("tokens are not those of the engines"), "{text}");
    ensure!(fleet.metric("gateway_token_mismatches_found_total", "").await? == 1.0);
    let log = fleet.gateway.output();
    ensure!(log.contains("tokens are not those of the engines"), "{log}");
    // Tokens that the client states are those of the engines: the first that is found again ends it.
    let ids: Vec<u32> = (0..64).collect();
    let body: Value = json!({"model": "m", "prompt": ids, "max_tokens": 1});
    until("the tokens match again", async || {
        ensure!(fleet.post("/v1/completions", &body).await?.0 == 200);
        Ok((fleet.metric("gateway_token_mismatches", "").await? == 0.0).then_some(()))
    })
    .await?;
    ensure!(!ready(&fleet).await?.contains("tokens are not"), "it is over");
    fleet.stop().await
}

#[tokio::test]
async fn tokens_that_a_client_makes_up_are_no_sign_of_a_mismatch() -> Result<()> {
    /// Longer than it takes until a prompt counts as known to the index.
    const ENOUGH: Duration = Duration::from_secs(3);
    let file = tokenizer().display().to_string();
    let fleet =
        Fleet::start(vec![(WorkerRole::Both, engine(FAST))], &["--tokenizer", &file]).await?;
    fleet.complete(&prompt("true")).await?;
    let invented: Vec<u32> = (0..64).collect();
    let body: Value = json!({
        "model": "m", "prompt": prompt("other"), "max_tokens": 1, "nvext": {"token_data": invented},
    });
    let began = Instant::now();
    while began.elapsed() < ENOUGH {
        let (status, answer) = fleet.post("/v1/completions", &body).await?;
        ensure!(status == 200, "{status}: {answer}");
    }
    ensure!(fleet.metric("gateway_token_mismatches_found_total", "").await? == 0.0);
    fleet.stop().await
}
