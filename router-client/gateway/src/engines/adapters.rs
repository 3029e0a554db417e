//! LoRA adapters and further names of models, as engines list them: `/v1/models` of vLLM and SGLang contains each adapter
//! with its base model as `parent`. vLLM lists each of its served names with the same `root`.

use super::Directory;
use crate::error::engine_status;
use futures::{StreamExt, stream};
use hyper::Uri;
use kvasir_engine_http::EngineClient;
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
/// Maximum adapters of one engine, and maximum names of models.
const ADAPTERS_MAX: usize = 1_024;
/// Maximum size of an answer in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;
const PATH: &str = "/v1/models";

/// An engine's list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Names {
    adapters: BTreeSet<String>,
    /// The model that each name without a `parent` means, if the engine states it (`root`).
    models: BTreeMap<String, String>,
}

impl Names {
    /// Whether two names mean one model.
    fn is_alias(&self, alias: &str, model: &str) -> bool {
        let root = self.models.get(model);
        alias != model && root.is_some() && self.models.get(alias) == root
    }
}

/// Lists of the engines that answered, by address.
type Answers = BTreeMap<String, Names>;

/// The lists that engines answered last. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct NamedModels(Arc<RwLock<Answers>>);

impl NamedModels {
    /// Whether an engine has an adapter; `None` if it has not answered yet.
    pub(super) fn has_adapter(&self, engine: &Uri, adapter: &str) -> Option<bool> {
        self.0.read().get(&engine.to_string()).map(|names| names.adapters.contains(adapter))
    }

    /// Whether an engine serves `model` under the name `alias`, too.
    pub(super) fn has_alias(&self, engine: &Uri, alias: &str, model: &str) -> bool {
        self.0.read().get(&engine.to_string()).is_some_and(|names| names.is_alias(alias, model))
    }

    /// Adapters of an engine.
    pub(super) fn adapters(&self, engine: &Uri) -> Vec<String> {
        let answers = self.0.read();
        let names = answers.get(&engine.to_string());
        names.into_iter().flat_map(|names| &names.adapters).cloned().collect()
    }

    /// Further names of an engine's model.
    pub(super) fn aliases(&self, engine: &Uri, model: &str) -> Vec<String> {
        let answers = self.0.read();
        let Some(names) = answers.get(&engine.to_string()) else { return Vec::new() };
        names.models.keys().filter(|alias| names.is_alias(alias, model)).cloned().collect()
    }

    /// Stores a round of answers. An engine that did not answer keeps its names. An engine that is missing in the
    /// round loses them.
    fn replace(&self, round: Vec<(String, Option<Names>)>) {
        let mut answers = self.0.write();
        let mut before = std::mem::take(&mut *answers);
        for (engine, answered) in round {
            let known = before.remove(&engine);
            if let (Some(answered), known) = (&answered, &known)
                && known.as_ref() != Some(answered)
            {
                let Names { adapters, models } = answered;
                let (models, adapters) = (models.len(), adapters.len());
                tracing::info!(engine, models, adapters, "the engine names its models");
            }
            if let Some(names) = answered.or(known) {
                answers.insert(engine, names);
            }
        }
    }
}

/// Queries the engines of all listed workers for their models and adapters, at an interval and immediately after a change of the
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

/// An engine's list; `None` without an answer in time.
async fn ask_in_time(client: &EngineClient, engine: &Uri) -> Option<Names> {
    let asked = timeout(TIMEOUT, fetch_names(client, engine)).await;
    let answered = asked.unwrap_or_else(|_late| Err("no answer in time".to_owned()));
    answered
        .inspect_err(|why| tracing::debug!(%engine, why, "an engine does not name its models"))
        .ok()
}

/// Requests the list of models from an engine.
async fn fetch_names(client: &EngineClient, engine: &Uri) -> Result<Names, String> {
    let answer = client.get(engine, PATH).await.map_err(|error| error.to_string())?;
    let answer = answer.whole_within(ANSWER_BYTES_MAX).await.map_err(|error| error.to_string())?;
    if !answer.status.is_success() {
        return Err(engine_status(answer.status));
    }
    let answer: Value = serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
    Ok(names(&answer))
}

/// Reads an answer. Adapters are models with another model as their base.
fn names(answer: &Value) -> Names {
    let models = answer.get("data").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut names = Names::default();
    for model in models {
        let text = |name| model.get(name).and_then(Value::as_str);
        let fits = |id: &&str| (1..=NAME_BYTES_MAX).contains(&id.len());
        let Some(name) = text("id").filter(fits) else { continue };
        match (text("parent").filter(|parent| *parent != name), text("root")) {
            (Some(_), _) if names.adapters.len() < ADAPTERS_MAX => {
                names.adapters.insert(name.to_owned());
            }
            (None, Some(root)) if names.models.len() < ADAPTERS_MAX => {
                names.models.insert(name.to_owned(), root.to_owned());
            }
            _ => {}
        }
    }
    names
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
            {"id": "other", "root": "/models/other"}, {"id": "x"}, {"id": "y"},
            {"id": "", "parent": "tiny"}, {"id": long, "parent": "tiny"}, {"parent": "tiny"}, 7,
        ]});
        let read = names(&answer);
        assert_eq!(read.adapters, BTreeSet::from(["ada".to_owned()]));
        assert!(read.is_alias("alias", "tiny") && read.is_alias("tiny", "alias"));
        for (alias, model) in [("ada", "tiny"), ("tiny", "tiny"), ("other", "tiny"), ("x", "y")] {
            assert!(!read.is_alias(alias, model), "{alias} {model}");
        }
        assert_eq!(names(&json!({"data": {}})), Names::default());
        assert_eq!(names(&json!("no")), Names::default());
        let many: Vec<_> =
            (0..2_000).map(|at| json!({"id": at.to_string(), "parent": "m"})).collect();
        assert_eq!(names(&json!({"data": many})).adapters.len(), ADAPTERS_MAX);
    }

    #[test]
    fn an_engine_that_does_not_answer_keeps_its_names() {
        let ada = Names { adapters: ["ada".to_owned()].into(), ..Names::default() };
        let named = NamedModels::default();
        let engine = Uri::from_static("http://a:1");
        let address = engine.to_string();
        assert_eq!(named.has_adapter(&engine, "ada"), None);
        named.replace(vec![(address.clone(), Some(ada))]);
        assert_eq!(
            (named.has_adapter(&engine, "ada"), named.has_adapter(&engine, "bob")),
            (Some(true), Some(false))
        );
        named.replace(vec![(address.clone(), None)]);
        assert_eq!(named.adapters(&engine), ["ada"]);
        named.replace(vec![(address, Some(Names::default()))]);
        assert_eq!(named.has_adapter(&engine, "ada"), Some(false));
        named.replace(Vec::new());
        assert_eq!(named.has_adapter(&engine, "ada"), None);
    }
}
