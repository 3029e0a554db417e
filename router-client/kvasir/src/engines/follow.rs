//! Follows the engines: registers those that answer, renews their leases, and removes those that are no longer named.

use super::facts::{Facts, FactsError, ask, registration};
use super::source::{EngineSource, distinct};
use super::spec::EngineSpec;
use futures::{StreamExt, stream};
use kvasir_gateway::config::EngineKeys;
use kvasir_gateway::engines::EngineClient;
use kvasir_proto::convert::Registration;
use kvasir_proto::pb::indexer_client::IndexerClient;
use kvasir_proto::pb::{RegisterWorkerRequest, RemoveWorkerRequest};
use kvasir_tls::Channel;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::{Code, Status};

/// Maximum number of engines that are asked concurrently.
const ASKED_MAX: usize = 16;

/// The engines, and what is needed to register them.
#[derive(Debug)]
pub struct Engines {
    /// Engines on the command line.
    pub named: Vec<EngineSpec>,
    /// Further engines, from a list that may change.
    pub source: Option<EngineSource>,
    /// Asks the engines.
    pub client: EngineClient,
    /// Keys of the engines' APIs, which `client` sends.
    pub keys: EngineKeys,
    /// The index.
    pub index: IndexerClient<Channel>,
    /// Time after which the index removes an engine that does not answer.
    pub lease: Duration,
}

/// A registered engine.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The engine, as the user named it.
    pub spec: EngineSpec,
    /// Facts that it stated.
    pub facts: Facts,
}

/// State of the engines between two rounds.
#[derive(Debug, Default)]
pub struct Watch {
    known: BTreeMap<String, Known>,
    /// Why the list could not be read.
    list_problem: Option<String>,
}

/// One engine.
#[derive(Debug)]
struct Known {
    /// The registered engine; `None` before its first answer.
    registered: Option<(Seen, Registration)>,
    problem: Option<String>,
}

impl Watch {
    /// Engines that do not answer, or cannot be registered, one line each.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let of_engines = self.faults().into_iter().map(|(name, why)| format!("{name}: {why}"));
        let of_list = self.list_problem.iter().map(|why| format!("engines-from: {why}"));
        of_list.chain(of_engines).collect()
    }

    /// Engines that do not answer or cannot be registered, each with the reason.
    #[must_use]
    pub fn faults(&self) -> Vec<(String, String)> {
        let fault = |(name, known): (&String, &Known)| Some((name.clone(), known.problem.clone()?));
        self.known.iter().filter_map(fault).collect()
    }

    /// Whether an engine of this name is followed.
    #[must_use]
    pub fn names(&self, engine: &str) -> bool {
        self.known.contains_key(engine)
    }

    /// Number of registered engines that answered their last question.
    #[must_use]
    pub fn answering(&self) -> usize {
        let answers = |known: &&Known| known.registered.is_some() && known.problem.is_none();
        self.known.values().filter(answers).count()
    }
}

impl Engines {
    /// Asks each engine once. Registers engines that answer, or renews their lease, and removes engines that are no
    /// longer named. Sends each new engine, and each engine that has started again, to `fresh`.
    pub async fn round(&self, watch: &mut Watch, fresh: &mpsc::Sender<Seen>) {
        let specs = self.list(watch).await;
        let Some(specs) = specs else { return };
        let names: Vec<_> = specs.iter().map(EngineSpec::name).collect();
        let gone: Vec<_> =
            watch.known.keys().filter(|name| !names.contains(name)).cloned().collect();
        for name in gone {
            if let Some((seen, registration)) =
                watch.known.remove(&name).and_then(|at| at.registered)
            {
                tracing::info!(
                    engine = name,
                    "the engine is no longer named: its blocks are removed"
                );
                self.remove(&registration, &seen).await;
            }
        }
        let asking = specs.into_iter().map(|spec| async move {
            let facts = self.facts(&spec).await;
            (spec, facts)
        });
        let mut answers = stream::iter(asking).buffer_unordered(ASKED_MAX);
        while let Some((spec, facts)) = answers.next().await {
            let name = spec.name();
            let known = watch.known.remove(&name);
            let known = self.update(&spec, facts, known, fresh).await;
            watch.known.insert(name, known);
        }
    }

    /// The engines of the command line and the list. `None`, with the reason in `watch`, if the list cannot be read:
    /// then the engines stay as they are.
    async fn list(&self, watch: &mut Watch) -> Option<Vec<EngineSpec>> {
        let mut specs = self.named.clone();
        if let Some(source) = &self.source {
            let listed = source.list().await.and_then(|listed| {
                specs.extend(listed);
                distinct(specs.clone())
            });
            match listed {
                Ok(all) => {
                    watch.list_problem = None;
                    return Some(all);
                }
                Err(why) => {
                    if watch.list_problem.as_ref() != Some(&why) {
                        tracing::error!(why, "the list of engines cannot be read");
                    }
                    watch.list_problem = Some(why);
                    return (watch.known.is_empty() && !self.named.is_empty())
                        .then(|| self.named.clone());
                }
            }
        }
        Some(specs)
    }

    async fn facts(&self, spec: &EngineSpec) -> Result<Facts, FactsError> {
        if let Some(key) = spec.key().map_err(FactsError::Endpoints)? {
            let set = self.keys.set(&spec.url, &key);
            set.map_err(|_invalid| {
                FactsError::Endpoints(
                    "key-file: the key has characters that a header cannot have".to_owned(),
                )
            })?;
        }
        ask(&self.client, spec).await
    }

    /// Registers an engine with the facts that it stated. A problem is logged when it is new.
    async fn update(
        &self,
        spec: &EngineSpec,
        facts: Result<Facts, FactsError>,
        known: Option<Known>,
        fresh: &mpsc::Sender<Seen>,
    ) -> Known {
        let engine = spec.name();
        let (before, problem_before) = known.map_or((None, None), |at| (at.registered, at.problem));
        let registered = match facts {
            Ok(facts) => self.register(spec, facts, before.as_ref()).await,
            Err(error) => Err(error.to_string()),
        };
        match registered {
            Ok((seen, registration)) => {
                let is_same = |(earlier, _): &(Seen, Registration)| {
                    earlier.facts.started_at == seen.facts.started_at
                };
                let has_started = !before.as_ref().is_some_and(is_same)
                    // Without a time of the start, an engine that was away may have started again.
                    || (problem_before.is_some() && seen.facts.started_at.is_none());
                if before.is_none() || problem_before.is_some() {
                    let Facts { model, block_size, blocks, .. } = &seen.facts;
                    tracing::info!(engine, model, block_size, blocks, "the engine answers");
                }
                if has_started {
                    // The receiver lives as long as the process.
                    let _sent = fresh.send(seen.clone()).await;
                }
                Known { registered: Some((seen, registration)), problem: None }
            }
            Err(why) => {
                if problem_before.as_ref() != Some(&why) {
                    tracing::error!(engine, "{why}");
                }
                Known { registered: before, problem: Some(why) }
            }
        }
    }

    /// Registers an engine. If it states other facts than before, or came from a checkpoint with other facts, it is
    /// removed first, and loses its blocks.
    async fn register(
        &self,
        spec: &EngineSpec,
        facts: Facts,
        before: Option<&(Seen, Registration)>,
    ) -> Result<(Seen, Registration), String> {
        let registration =
            registration(spec, &facts, self.lease).map_err(|error| error.to_string())?;
        let seen = Seen { spec: spec.clone(), facts };
        let refused =
            |status: Status| format!("the index refuses the engine: {}", status.message());
        if let Some((earlier, present)) = before
            && (present.partition != registration.partition)
        {
            self.remove(present, earlier).await;
        }
        let outcome = match self.send(&registration).await {
            Err(status) if status.code() == Code::FailedPrecondition => {
                self.remove(&registration, &seen).await;
                self.send(&registration).await
            }
            outcome => outcome,
        };
        outcome.map_err(refused)?;
        Ok((seen, registration))
    }

    async fn send(&self, registration: &Registration) -> Result<(), Status> {
        let request = RegisterWorkerRequest::from(registration);
        self.index.clone().register_worker(request).await.map(drop)
    }

    async fn remove(&self, registration: &Registration, seen: &Seen) {
        let request = RemoveWorkerRequest {
            worker_id: registration.worker.as_str().to_owned(),
            model: registration.partition.model().to_owned(),
            tenant: String::new(),
        };
        if let Err(error) = self.index.clone().remove_worker(request).await
            && error.code() != Code::NotFound
        {
            tracing::warn!(engine = seen.spec.name(), %error, "the engine's blocks cannot be removed");
        }
    }
}
