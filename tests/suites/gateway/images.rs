//! Prompts with images: the gateway asks the index for what each engine has in the place of an image's tokens.

use crate::fake::{Behaviour, Fake, tokens};
use crate::fleet::{BLOCK_SIZE, Fleet, MODEL, PATIENCE, profile};
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb::{self, WorkerRole};
use kvasir_sim::client;
use kvasir_sim::engine::WireForm;
use kvasir_sim::engine::publisher::{Endpoints, EpochForm, Publisher, PublisherConfig};
use rmpv::Value as Packed;
use serde_json::{Value, json};
use std::ops::Range;

const BLOCKS: usize = 4;
/// The image's tokens: in the second and third block, and not in the first and last.
const SPAN: Range<usize> = 20..40;
const IMAGE: &str = "1234567890abcdef";
const OTHER: &str = "1234567890abcdee";
const PLACEHOLDER: u64 = 7;

/// The numbers of [`IMAGE`] that SGLang 0.5.22 and 0.5.23 make, from the contract's vectors.
fn numbers() -> Result<(u64, Vec<u64>)> {
    let lines = include_str!("../../../proto/tests/data/image-tokens.txt").lines();
    let of_image = lines.filter_map(|line| line.strip_prefix(IMAGE)).next().context("a vector")?;
    let mut numbers = of_image.split_whitespace().map(str::parse);
    let narrow = numbers.next().context("a number")??;
    Ok((narrow, numbers.collect::<Result<_, _>>()?))
}

/// Tokens of a prompt with the image, and these numbers in turn in the image's place.
fn prompt(image: &[u64]) -> Vec<u64> {
    let mut tokens: Vec<u64> = (100..).take(BLOCKS * BLOCK_SIZE).collect();
    for (at, number) in SPAN.zip(image.iter().cycle()) {
        tokens[at] = *number;
    }
    tokens
}

/// A worker whose engine publishes one prompt with the image: with identifiers, if it `has_keys`.
async fn holder(
    engine: pb::Engine,
    image_tokens: pb::ImageTokens,
    (tokens, has_keys): (&[u64], bool),
    behaviour: Behaviour,
) -> Result<(Fleet, Fake, Publisher)> {
    let config = PublisherConfig {
        topic: "kv-events".to_owned(),
        buffer_batches: 10,
        form: WireForm::Map,
        epoch: EpochForm::None,
    };
    let mut publisher = Publisher::bind(config, &Endpoints::any()).await?;
    let Endpoints { live, replay } = publisher.endpoints().clone();
    let endpoint =
        pb::EngineEndpoint { endpoint: live, replay_endpoint: replay, ..Default::default() };
    let mut fleet = Fleet::start(Vec::new(), &[]).await?;
    let fake = Fake::start(behaviour).await?;
    let profile = pb::WorkerProfile {
        image_tokens: image_tokens.into(),
        ..profile(WorkerRole::Both, fake.address)
    };
    fleet.register_engine("w0", engine, profile, vec![endpoint]).await?;
    publisher.publish(stored(tokens, has_keys)?).await?;
    let is_exact = |source: &pb::SourceInfo| client::is_exact_at(source, 0);
    client::wait_for_sources(&mut fleet.indexer, (MODEL, "w0"), "exact", PATIENCE, is_exact)
        .await?;
    Ok((fleet, fake, publisher))
}

fn stored(tokens: &[u64], has_keys: bool) -> Result<Vec<u8>> {
    let text = |text: &str| Packed::from(text);
    let keys = (0..BLOCKS as i64).map(|block| {
        let offset = SPAN.start as i64 - block * BLOCK_SIZE as i64;
        match block {
            1 | 2 => Packed::Array(vec![Packed::Array(vec![text(IMAGE), Packed::from(offset)])]),
            _ => Packed::Nil,
        }
    });
    let mut event = vec![
        (text("type"), text("BlockStored")),
        (text("block_hashes"), (1..=BLOCKS as u64).map(Packed::from).collect()),
        (text("parent_block_hash"), Packed::Nil),
        (
            text("token_ids"),
            tokens.iter().take(BLOCKS * BLOCK_SIZE).copied().map(Packed::from).collect(),
        ),
        (text("block_size"), Packed::from(BLOCK_SIZE as u64)),
    ];
    if has_keys {
        event.push((text("extra_keys"), Packed::Array(keys.collect())));
    }
    let batch = Packed::Array(vec![Packed::from(1.0), Packed::Array(vec![Packed::Map(event)])]);
    let mut payload = Vec::new();
    rmpv::encode::write_value(&mut payload, &batch)?;
    Ok(payload)
}

/// The share of a request's prompt that its worker holds, as the router counts it.
async fn share(fleet: &Fleet, path: &str, body: &Value) -> Result<f64> {
    let before = fleet.metric("router_kv_hit_ratio_sum", "").await?;
    let (status, answer) = fleet.post(path, body).await?;
    ensure!(status == 200, "{status}: {answer}\n{}", fleet.gateway.output());
    Ok(fleet.metric("router_kv_hit_ratio_sum", "").await? - before)
}

fn near(share: f64, expected: f64) -> Result<()> {
    ensure!((share - expected).abs() < 1e-6, "the share is {share}, expected {expected}");
    Ok(())
}

#[tokio::test]
async fn one_request_finds_an_image_at_every_engine() -> Result<()> {
    let (narrow, wide) = numbers()?;
    let unspecified = pb::ImageTokens::Unspecified;
    for (engine, image_tokens, stored) in [
        (pb::Engine::Vllm, unspecified, (prompt(&[PLACEHOLDER]), true)),
        (pb::Engine::Sglang, pb::ImageTokens::Sglang30Bit, (prompt(&[narrow]), false)),
        (pb::Engine::Sglang, unspecified, (prompt(&wide), false)),
    ] {
        let (stored_tokens, has_keys) = &stored;
        let holding = (stored_tokens.as_slice(), *has_keys);
        let (fleet, _fake, _publisher) =
            holder(engine, image_tokens, holding, Behaviour::default()).await?;
        let asked = |tokens: &[u64], images: Value| {
            json!({
                "model": MODEL, "prompt": "x", "max_tokens": 1,
                "nvext": {"token_data": tokens, "multimodal": images},
            })
        };
        let image = |identifier: &str| {
            let start = SPAN.start;
            let count = SPAN.len();
            json!([{"identifier": identifier, "token_offset": start, "token_count": count}])
        };
        let path = "/v1/completions";
        let placeholders = prompt(&[PLACEHOLDER]);
        let mut cases = vec![
            (asked(&placeholders, image(IMAGE)), 1.0),
            (asked(&placeholders, image(OTHER)), 0.25),
            (asked(&placeholders, json!([])), 0.25),
        ];
        if !has_keys {
            // SGLang's own numbers need no images beside them.
            cases.insert(0, (asked(stored_tokens, json!([])), 1.0));
        }
        for (body, expected) in cases {
            let found = share(&fleet, path, &body).await?;
            near(found, expected)
                .with_context(|| format!("{engine:?} {image_tokens:?}: {body}"))?;
        }
        fleet.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn identifiers_of_render_find_images() -> Result<()> {
    let messages = json!([{"role": "user", "content": [
        {"type": "text", "text": "What is in the picture? "},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]}]);
    let features = |identifier: &str| {
        let place = json!({"offset": SPAN.start, "length": SPAN.len()});
        json!({
            "mm_hashes": {"image": [identifier]}, "mm_placeholders": {"image": [place]}, "kwargs_data": null,
        })
    };
    let rendered = |features| Behaviour { features, ..Behaviour::default() };
    let all: Vec<u64> = tokens(&messages.to_string()).into_iter().map(u64::from).collect();
    let whole_blocks = all.len() / BLOCK_SIZE;
    ensure!(whole_blocks >= BLOCKS, "the prompt has {} tokens", all.len());
    let (fleet, fake, _publisher) = holder(
        pb::Engine::Vllm,
        pb::ImageTokens::Unspecified,
        (&all, true),
        rendered(features(IMAGE)),
    )
    .await?;
    let of = |blocks: u32| f64::from(blocks) / whole_blocks as f64;
    let path = "/v1/chat/completions";
    let mut body = json!({"model": MODEL, "messages": messages, "max_tokens": 1});
    near(share(&fleet, path, &body).await?, of(4))?;
    // Rendered anew only if what is rendered differs.
    for (answer, expected) in [(features(OTHER), of(1)), (Value::Null, of(1))] {
        fake.change(rendered(answer.clone()));
        body["chat_template_kwargs"] = json!({"nonce": answer.to_string()});
        near(share(&fleet, path, &body).await?, expected).with_context(|| answer.to_string())?;
    }
    // Features of a form that nobody knows: without them the answer would be wrong for every image.
    fake.change(rendered(json!({"mm_hashes": {"image": [IMAGE]}})));
    body["chat_template_kwargs"] = json!({"nonce": 4});
    near(share(&fleet, path, &body).await?, 0.0)?;
    ensure!(fleet.metric("gateway_tokens_total", "not_rendered").await? == 1.0);
    fleet.stop().await
}
