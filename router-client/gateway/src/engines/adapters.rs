//! LoRA adapters that engines list themselves: `/v1/models` of vLLM and SGLang contains each adapter with its base
//! model as `parent`.

use super::{Directory, EngineClient};
use futures::{StreamExt, stream};
use hyper::Uri;
use kvasir_proto::limits::NAME_BYTES_MAX;
use parking_lot::RwLock;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::time::{sleep, timeout};

/// Time between two requests to each engine.
const INTERVAL: Duration = Duration::from_secs(5);
/// Maximum wait for an engine's answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum concurrent requests to engines.
const ASKED_MAX: usize = 16;
/// Maximum number of engines that are queried.
const ENGINES_MAX: usize = 4_096;
/// Maximum adapters of one engine.
const ADAPTERS_MAX: usize = 1_024;
/// Maximum size of an answer in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;
const PATH: &str = "/v1/models";

/// Adapters of the engines that answered, by address.
type Answers = BTreeMap<String, BTreeSet<String>>;

/// The adapters that engines listed last. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct NamedAdapters(Arc<RwLock<Answers>>);

impl NamedAdapters {
    /// Whether an engine has an adapter; `None` if it has not answered yet.
    pub(super) fn has(&self, engine: &Uri, adapter: &str) -> Option<bool> {
        self.0.read().get(&engine.to_string()).map(|adapters| adapters.contains(adapter))
    }

    /// Adapters of an engine.
    pub(super) fn list(&self, engine: &Uri) -> Vec<String> {
        let answers = self.0.read();
        answers.get(&engine.to_string()).into_iter().flatten().cloned().collect()
    }

    /// Stores a round of answers. An engine that did not answer keeps its adapters. An engine that is missing in the
    /// round loses them.
    fn replace(&self, round: Vec<(String, Option<BTreeSet<String>>)>) {
        let mut answers = self.0.write();
        let mut before = std::mem::take(&mut *answers);
        for (engine, answered) in round {
            let known = before.remove(&engine);
            if let (Some(answered), known) = (&answered, &known)
                && known.as_ref().unwrap_or(&BTreeSet::new()) != answered
            {
                tracing::info!(engine, adapters = answered.len(), "an engine names its adapters");
            }
            if let Some(adapters) = answered.or(known) {
                answers.insert(engine, adapters);
            }
        }
    }
}

/// Queries the engines of all listed workers for their adapters, at an interval and immediately after a change of the
/// workers.
pub async fn watch(mut directory: Directory, client: EngineClient) {
    loop {
        let mut engines: Vec<_> = directory.all_addresses();
        engines.sort_by_key(Uri::to_string);
        engines.dedup();
        let asking = engines.into_iter().take(ENGINES_MAX).map(|engine| {
            let client = client.clone();
            async move { (engine.to_string(), ask_in_time(&client, &engine).await) }
        });
        let round = stream::iter(asking).buffer_unordered(ASKED_MAX).collect().await;
        directory.named.replace(round);
        select! {
            () = sleep(INTERVAL) => {}
            changed = directory.listed.changed() => {
                // The sender lives as long as the process.
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

/// Adapters of an engine; `None` without an answer in time.
async fn ask_in_time(client: &EngineClient, engine: &Uri) -> Option<BTreeSet<String>> {
    let asked = timeout(TIMEOUT, fetch_adapters(client, engine)).await;
    let answered = asked.unwrap_or_else(|_late| Err("no answer in time".to_owned()));
    answered
        .inspect_err(|why| tracing::debug!(%engine, why, "an engine does not name its models"))
        .ok()
}

/// Requests the list of models from an engine, and returns the LoRA adapters in it.
async fn fetch_adapters(client: &EngineClient, engine: &Uri) -> Result<BTreeSet<String>, String> {
    let answer = client.get(engine, PATH).await.map_err(|error| error.to_string())?;
    let answer = answer.whole_within(ANSWER_BYTES_MAX).await.map_err(|error| error.to_string())?;
    if !answer.status.is_success() {
        return Err(format!("status {}", answer.status));
    }
    let answer: Value = serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
    Ok(adapters(&answer))
}

/// Returns the adapters in an answer: models with another model as their base.
fn adapters(answer: &Value) -> BTreeSet<String> {
    let models = answer.get("data").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let adapter = |model: &Value| {
        let text = |name| model.get(name).and_then(Value::as_str);
        let name = text("id").filter(|id| (1..=NAME_BYTES_MAX).contains(&id.len()))?;
        text("parent").filter(|parent| *parent != name).map(|_parent| name.to_owned())
    };
    models.iter().filter_map(adapter).take(ADAPTERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn adapters_are_the_models_with_a_base() {
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        let answer = json!({"object": "list", "data": [
            {"id": "tiny", "root": "/models/tiny", "parent": null, "max_model_len": 2_048},
            {"id": "alias", "root": "/models/tiny"},
            {"id": "ada", "root": "/adapters/ada", "parent": "tiny"},
            {"id": "", "parent": "tiny"}, {"id": long, "parent": "tiny"}, {"parent": "tiny"}, 7,
        ]});
        assert_eq!(adapters(&answer), BTreeSet::from(["ada".to_owned()]));
        assert_eq!(adapters(&json!({"data": {}})), BTreeSet::new());
        assert_eq!(adapters(&json!("no")), BTreeSet::new());
        let many: Vec<_> =
            (0..2_000).map(|at| json!({"id": at.to_string(), "parent": "m"})).collect();
        assert_eq!(adapters(&json!({"data": many})).len(), ADAPTERS_MAX);
    }

    #[test]
    fn an_engine_that_does_not_answer_keeps_its_adapters() {
        let named = NamedAdapters::default();
        let engine = Uri::from_static("http://a:1");
        let address = engine.to_string();
        assert_eq!(named.has(&engine, "ada"), None);
        named.replace(vec![(address.clone(), Some(["ada".to_owned()].into()))]);
        assert_eq!(
            (named.has(&engine, "ada"), named.has(&engine, "bob")),
            (Some(true), Some(false))
        );
        named.replace(vec![(address.clone(), None)]);
        assert_eq!(named.list(&engine), ["ada"]);
        named.replace(vec![(address, Some(BTreeSet::new()))]);
        assert_eq!(named.has(&engine, "ada"), Some(false));
        named.replace(Vec::new());
        assert_eq!(named.has(&engine, "ada"), None);
    }
}
