//! Follows the engines: registers engines that answer, and removes engines that stay silent or are no longer named.

use super::facts::{Facts, FactsError, ask, labels, registration};
use super::pods::Listed;
use super::source::{EngineList, EngineSource, distinct};
use super::spec::EngineSpec;
use futures::{StreamExt, stream};
use kvasir_gateway::config::EngineKeys;
use kvasir_gateway::engines::EngineClient;
use kvasir_proto::convert::Registration;
use kvasir_proto::pb::indexer_client::IndexerClient;
use kvasir_proto::pb::{
    ListWorkersRequest, RegisterWorkerRequest, RemoveWorkerRequest, WorkerInfo,
};
use kvasir_tls::Channel;
use std::collections::BTreeMap;
use std::future::pending;
use std::time::Duration;
use tokio::select;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tonic::{Code, Status};

/// Maximum number of engines that are asked concurrently.
const ASKED_MAX: usize = 16;
/// Maximum time to read the list of engines: name servers may be away.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which an engine is checked again that has failed its check.
const RECHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The engines, with the clients that register them.
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
    /// Time after which an engine that does not answer is removed.
    pub timeout: Duration,
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
    list: Option<EngineList>,
    /// The last list that could be read.
    specs: Vec<EngineSpec>,
    /// Parts of this list that cannot be used, each with the reason.
    list_faults: Vec<(String, String)>,
    /// Whether the list has changed since the last round began: engines may be new.
    has_changed: bool,
    /// Why the list could not be read.
    list_problem: Option<String>,
    /// Whether workers of earlier processes, which a checkpoint brought back, were compared with the list.
    has_compared: bool,
}

/// One engine.
#[derive(Debug)]
struct Known {
    /// The registered engine; `None` before its first answer, and after its removal.
    registered: Option<(Seen, Registration)>,
    problem: Option<String>,
    answered_at: Instant,
    /// Time of the last check that was ordered; `None` if one is due.
    checked_at: Option<Instant>,
}

impl Watch {
    /// Problems with the list and with engines, one line each.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let of_engines = self.faults().into_iter().map(|(name, why)| format!("{name}: {why}"));
        of_engines.collect()
    }

    /// The list if it cannot be read, and engines that do not answer or cannot be registered, each with the reason.
    #[must_use]
    pub fn faults(&self) -> Vec<(String, String)> {
        let of_list = self.list_problem.iter().map(|why| ("engines-from".to_owned(), why.clone()));
        let of_list = of_list.chain(self.list_faults.iter().cloned());
        let fault = |(name, known): (&String, &Known)| Some((name.clone(), known.problem.clone()?));
        of_list.chain(self.known.iter().filter_map(fault)).collect()
    }

    /// Waits until Kubernetes reports a change of the list; see [`EngineList::changed`]. May be cancelled at any time.
    pub async fn changed(&mut self) {
        match &mut self.list {
            Some(list) => list.changed().await,
            None => pending().await,
        }
    }

    /// Whether the list has changed since the last round began.
    #[must_use]
    pub const fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// Whether an engine of this name is followed.
    #[must_use]
    pub fn names(&self, engine: &str) -> bool {
        self.known.contains_key(engine)
    }

    /// Number of registered engines.
    #[must_use]
    pub fn registered(&self) -> usize {
        self.known.values().filter(|known| known.registered.is_some()).count()
    }
}

impl Engines {
    /// Asks each engine once. Registers engines that answer, and removes engines that are no longer named or silent for
    /// too long. Sends engines whose check is due to `unchecked`: new ones, those that have started again or changed,
    /// and from time to time those with a fault (`is_faulty`).
    pub async fn round(
        &self,
        watch: &mut Watch,
        unchecked: &mpsc::Sender<Seen>,
        is_faulty: impl Fn(&str) -> bool,
    ) {
        self.apply_list(watch).await;
        watch.has_changed = false;
        if !watch.has_compared && watch.list_problem.is_none() {
            watch.has_compared = self.remove_strangers(&watch.specs).await;
        }
        let asking = watch.specs.clone().into_iter().map(|spec| {
            let before = watch.known.get(&spec.name()).and_then(|known| known.registered.as_ref());
            let before = before.map(|(seen, _)| seen).filter(|seen| seen.spec == spec).cloned();
            async move {
                let facts = self.facts(&spec, before.as_ref().map(|seen| &seen.facts)).await;
                (spec, facts)
            }
        });
        // In the order of the list: of two engines with one socket, the first one has it.
        let asking: Vec<_> = asking.collect();
        let mut answers = stream::iter(asking).buffered(ASKED_MAX);
        loop {
            let answer = select! {
                answer = answers.next() => answer,
                // The removal of an engine does not wait for others that are silent.
                () = watch.changed() => {
                    self.apply_list(watch).await;
                    continue;
                }
            };
            let Some((spec, facts)) = answer else { return };
            if !watch.specs.contains(&spec) {
                continue;
            }
            let name = spec.name();
            let known = watch.known.remove(&name);
            let mut known = self.update(&spec, facts, known).await;
            let is_due = match known.checked_at {
                None => true,
                Some(at) => at.elapsed() >= RECHECK_INTERVAL && is_faulty(&name),
            };
            if let Some((seen, _)) = known.registered.as_ref().filter(|_| known.problem.is_none())
                && is_due
                // Without room, the check stays due.
                && unchecked.try_send(seen.clone()).is_ok()
            {
                known.checked_at = Some(Instant::now());
            }
            watch.known.insert(name, known);
        }
    }

    /// Reads the list. Removes engines that are no longer named, and those whose pod or address is another one now.
    pub async fn apply_list(&self, watch: &mut Watch) {
        self.read_list(watch).await;
        let specs: BTreeMap<_, _> = watch.specs.iter().map(|spec| (spec.name(), spec)).collect();
        let gone = watch.known.iter().filter(|(name, known)| {
            let is_other = |spec: &&EngineSpec| {
                let registered = known.registered.as_ref();
                registered.is_some_and(|(seen, _)| labels(&seen.spec) != labels(spec))
            };
            specs.get(*name).is_none_or(is_other)
        });
        for name in gone.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            if let Some((seen, registration)) =
                watch.known.remove(&name).and_then(|known| known.registered)
            {
                tracing::info!(engine = name, "the engine is no longer named: removed");
                self.keys.remove(&seen.spec.url);
                self.remove(&registration).await;
            }
        }
    }

    /// Reads the list. If it cannot be read, the engines stay as they are.
    async fn read_list(&self, watch: &mut Watch) {
        let mut specs = self.named.clone();
        let list = match &self.source {
            Some(source) => {
                let list = watch.list.get_or_insert_with(|| EngineList::new(source.clone()));
                let late = |_late| Err(format!("no answer within {LIST_TIMEOUT:?}"));
                timeout(LIST_TIMEOUT, list.read()).await.unwrap_or_else(late)
            }
            None => Ok(Listed::default()),
        };
        let listed = list.and_then(|Listed { specs: listed, faults }| {
            specs.extend(listed);
            Ok((distinct(specs)?, faults))
        });
        match listed {
            Ok((specs, faults)) => {
                for (name, why) in faults.iter().filter(|fault| !watch.list_faults.contains(fault))
                {
                    tracing::error!("engines-from: {name}: {why}");
                }
                watch.list_faults = faults;
                watch.has_changed |= watch.specs != specs;
                watch.specs = specs;
                watch.list_problem = None;
            }
            Err(why) => {
                if watch.list_problem.as_ref() != Some(&why) {
                    tracing::error!("engines-from: {why}");
                }
                watch.list_problem = Some(why);
                watch.list_faults.clear();
                if watch.specs.is_empty() {
                    watch.specs.clone_from(&self.named);
                }
            }
        }
    }

    async fn facts(&self, spec: &EngineSpec, before: Option<&Facts>) -> Result<Facts, FactsError> {
        match spec.key().map_err(FactsError::Stated)? {
            Some(key) => {
                let set = self.keys.set(&spec.url, &key);
                set.map_err(|_invalid| {
                    let path = spec.key_file.as_deref().unwrap_or_else(|| "".as_ref());
                    let path = path.display();
                    FactsError::Stated(format!(
                        "key-file {path}: the key has characters that a header cannot have"
                    ))
                })?;
            }
            None => self.keys.remove(&spec.url),
        }
        ask(&self.client, spec, before).await
    }

    /// Registers an engine with the facts that it stated, or removes it if it was silent for too long. A problem is
    /// logged when it is new.
    async fn update(
        &self,
        spec: &EngineSpec,
        facts: Result<Facts, FactsError>,
        known: Option<Known>,
    ) -> Known {
        let engine = spec.name();
        let mut known = known.unwrap_or_else(|| Known {
            registered: None,
            problem: None,
            answered_at: Instant::now(),
            checked_at: None,
        });
        let registered = match facts {
            Ok(facts) => {
                known.answered_at = Instant::now();
                self.register(spec, facts, known.registered.as_ref()).await
            }
            Err(error) => Err(error.to_string()),
        };
        match registered {
            Ok((seen, registration)) => {
                let is_same = known.registered.as_ref().is_some_and(|(earlier, present)| {
                    earlier.facts.started_at == seen.facts.started_at && *present == registration
                });
                // Without a time of the start, an engine that was away may have started again.
                let was_away = known.problem.is_some() && seen.facts.started_at.is_none();
                if !is_same || known.problem.is_some() {
                    let Facts { model, block_size, blocks, .. } = &seen.facts;
                    tracing::info!(engine, model, block_size, blocks, "the engine answers");
                }
                if !is_same || was_away {
                    known.checked_at = None;
                }
                known.registered = Some((seen, registration));
                known.problem = None;
            }
            Err(why) => {
                if known.problem.as_ref() != Some(&why) {
                    tracing::error!(engine, "{why}");
                }
                known.problem = Some(why);
                if known.answered_at.elapsed() >= self.timeout
                    && let Some((_, registration)) = known.registered.take()
                {
                    tracing::warn!(engine, "the engine was silent for too long: removed");
                    self.remove(&registration).await;
                    known.checked_at = None;
                }
            }
        }
        known
    }

    /// Registers an engine. If it states other facts than before, or a checkpoint brought it back with other facts, it
    /// is removed first, and loses its blocks.
    async fn register(
        &self,
        spec: &EngineSpec,
        facts: Facts,
        before: Option<&(Seen, Registration)>,
    ) -> Result<(Seen, Registration), String> {
        let registration = registration(spec, &facts).map_err(|error| error.to_string())?;
        if let Some((_, present)) = before
            && *present != registration
        {
            self.remove(present).await;
        }
        let mut outcome = self.send(&registration).await;
        if let Err(status) = &outcome
            && status.code() == Code::FailedPrecondition
        {
            let workers = self.workers().await?;
            let is_own = |worker: &WorkerInfo| worker.worker_id == registration.worker.as_str();
            if workers.iter().any(is_own) {
                self.remove(&registration).await;
                outcome = self.send(&registration).await;
            } else if let Some(why) = conflict(&registration, &workers) {
                return Err(why);
            }
        }
        outcome.map_err(|status| format!("the index refuses it: {}", status.message()))?;
        Ok((Seen { spec: spec.clone(), facts }, registration))
    }

    async fn send(&self, registration: &Registration) -> Result<(), Status> {
        let request = RegisterWorkerRequest::from(registration);
        self.index.clone().register_worker(request).await.map(drop)
    }

    async fn workers(&self) -> Result<Vec<WorkerInfo>, String> {
        let listed = self.index.clone().list_workers(ListWorkersRequest::default()).await;
        let listed = listed.map_err(|status| status.message().to_owned())?;
        Ok(listed.into_inner().workers)
    }

    /// Removes workers that a checkpoint brought back and that are no longer named, or whose pod or address is another one now.
    /// Returns whether the index answered.
    async fn remove_strangers(&self, specs: &[EngineSpec]) -> bool {
        let workers = match self.workers().await {
            Ok(workers) => workers,
            Err(why) => {
                tracing::warn!("the index does not list its workers: {why}");
                return false;
            }
        };
        let is_named = |worker: &WorkerInfo| {
            let profile = worker.registration.as_ref().and_then(|at| at.profile.as_ref());
            let stated = profile.into_iter().flat_map(|profile| &profile.labels);
            let stated = stated.map(|label| (label.key.clone(), label.value.clone())).collect();
            let mut same = specs.iter().filter(|spec| spec.name() == worker.worker_id);
            same.any(|spec| labels(spec) == stated)
        };
        for worker in workers.into_iter().filter(|worker| !is_named(worker)) {
            tracing::info!(engine = worker.worker_id, "the engine is no longer named: removed");
            let WorkerInfo { worker_id, model, tenant, .. } = worker;
            self.send_removal(RemoveWorkerRequest { worker_id, model, tenant }).await;
        }
        true
    }

    async fn remove(&self, registration: &Registration) {
        let request = RemoveWorkerRequest {
            worker_id: registration.worker.as_str().to_owned(),
            model: registration.partition.model().to_owned(),
            tenant: registration.partition.tenant().to_owned(),
        };
        self.send_removal(request).await;
    }

    async fn send_removal(&self, request: RemoveWorkerRequest) {
        let engine = request.worker_id.clone();
        if let Err(error) = self.index.clone().remove_worker(request).await
            && error.code() != Code::NotFound
        {
            tracing::warn!(engine, %error, "the engine's blocks cannot be removed");
        }
    }
}

/// Explains why the index refuses a new engine beside the others: another block size, or a socket that both name.
fn conflict(registration: &Registration, workers: &[WorkerInfo]) -> Option<String> {
    let model = registration.partition.model();
    let size = registration.block_size;
    if let Some(other) = workers.iter().find(|at| at.model == model && at.block_size != size) {
        let WorkerInfo { worker_id, block_size, .. } = other;
        return Some(format!(
            "{size} tokens per block, but {worker_id} of the same model {model} has {block_size}: remove block-size= where it is \
             wrong, or start both engines with one block size (vLLM --block-size, SGLang --page-size)"
        ));
    }
    let own: Vec<_> = registration.endpoints.iter().map(|at| at.endpoint.as_str()).collect();
    let shared = |is_same: fn(&str, &str) -> bool| {
        let sockets = workers.iter().flat_map(|worker| {
            let registered = worker.registration.iter().flat_map(|at| &at.endpoints);
            registered.map(move |at| (worker.worker_id.as_str(), at.endpoint.as_str()))
        });
        sockets.filter(|(_, taken)| own.iter().any(|own| is_same(own, taken))).collect::<Vec<_>>()
    };
    let mut sockets = shared(|own, taken| own == taken);
    if sockets.is_empty() {
        // Both may name the host differently: the index compares addresses.
        sockets = shared(|own, taken| port(own) == port(taken));
    }
    let [(other, socket)] = sockets.as_slice() else { return None };
    Some(format!(
        "{socket} is the event socket of {other}, another engine: give each engine an endpoint of its own in \
         --kv-events-config, and state it with events=tcp://HOST:PORT"
    ))
}

fn port(endpoint: &str) -> Option<&str> {
    endpoint.rsplit_once(':').map(|(_, port)| port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_proto::pb::EngineEndpoint;
    use kvasir_proto::types::EngineKind;

    fn worker(id: &str, block_size: u32, endpoint: &str) -> WorkerInfo {
        let endpoints =
            vec![EngineEndpoint { endpoint: endpoint.to_owned(), ..Default::default() }];
        let registration = RegisterWorkerRequest { endpoints, ..Default::default() };
        WorkerInfo {
            worker_id: id.to_owned(),
            model: "m".to_owned(),
            block_size,
            registration: Some(registration),
            ..Default::default()
        }
    }

    #[test]
    fn a_conflict_names_the_engine_that_is_in_the_way() {
        let facts = Facts {
            kind: EngineKind::Vllm,
            version: None,
            model: "m".to_owned(),
            model_tokens_max: None,
            block_size: 16,
            other_block_size: None,
            blocks: None,
            prefix_match_unit: None,
            caches_prefixes: None,
            ranks: [0].into(),
            started_at: None,
        };
        let spec = "gpu-1:8001".parse().expect("an engine");
        let registration = registration(&spec, &facts).expect("valid");
        let why = |workers: &[WorkerInfo]| conflict(&registration, workers).unwrap_or_default();
        // Engines on other machines have the same port.
        let others = worker("gpu-0:8000", 16, "tcp://gpu-0:5557");
        let text = why(&[others.clone(), worker("gpu-1:8000", 16, "tcp://gpu-1:5557")]);
        assert!(text.starts_with("tcp://gpu-1:5557 is the event socket of gpu-1:8000"), "{text}");
        // Another spelling of one host.
        let text = why(&[worker("b:1", 16, "tcp://10.0.0.1:5557"), worker("c:1", 16, "tcp://c:1")]);
        assert!(text.starts_with("tcp://10.0.0.1:5557 is the event socket of b:1"), "{text}");
        // The index's own reason is better than a guess.
        assert_eq!(why(&[others.clone(), worker("b:1", 16, "tcp://10.0.0.1:5557")]), "");
        assert_eq!(why(&[]), "");
        let text = why(&[others, worker("b:1", 32, "tcp://b:1")]);
        assert!(
            text.starts_with("16 tokens per block, but b:1 of the same model m has 32"),
            "{text}"
        );
    }
}
