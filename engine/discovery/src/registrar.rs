//! Registers engines at an index.

use crate::facts::{Facts, labels, registration};
use crate::spec::EngineSpec;
use kvasir_proto::convert::{Registration, WorkerAddress};
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
use kvasir_proto::pb::indexer_client::IndexerClient;
use kvasir_proto::pb::{
    ListWorkersRequest, RegisterWorkerRequest, RemoveWorkerRequest, WorkerInfo,
};
use kvasir_proto::types::WorkerId;
use kvasir_tls::Channel;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use tonic::{Code, Status};

/// Label of a worker that an index with other workers found by itself. Others remain untouched.
const FOUND_LABEL: &str = "registered-by";
const FOUND: &str = "engines-from";

/// Which engines an index takes.
pub trait Shard: Debug + Send + Sync {
    /// Whether the worker belongs to this shard.
    fn owns(&self, worker: &WorkerId) -> bool;
}

/// Whether an index with other workers found this worker by a list of engines.
#[must_use]
pub fn is_found(registration: &Registration) -> bool {
    registration.profile.labels.get(FOUND_LABEL).is_some_and(|value| value == FOUND)
}

/// Registers engines at an index.
#[derive(Debug, Clone)]
pub struct Registrar {
    index: IndexerClient<Channel>,
    shard: Option<Arc<dyn Shard>>,
}

impl Registrar {
    /// Creates a registrar that calls an index. Without `shard`, all workers of the index are these engines. With it, the
    /// index takes only engines of its shard, and may have other workers, which stay as they are.
    #[must_use]
    pub fn new(index: Channel, shard: Option<Arc<dyn Shard>>) -> Self {
        let index = IndexerClient::new(index)
            .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
        Self { index, shard }
    }

    /// Whether the index may have other workers.
    pub(crate) const fn is_shared(&self) -> bool {
        self.shard.is_some()
    }

    /// Whether the index takes an engine. An invalid name is refused later, with its reason.
    pub(crate) fn owns(&self, spec: &EngineSpec) -> bool {
        let Some(shard) = &self.shard else { return true };
        WorkerId::new(&spec.name()).map_or(true, |worker| shard.owns(&worker))
    }

    /// The index's workers that are these engines, or were.
    pub(crate) async fn present(&self) -> Result<Present, String> {
        let registrations = self.workers().await?.into_iter().filter_map(|worker| {
            let registration = Registration::try_from(worker.registration?).ok()?;
            self.is_ours(&registration).then(|| (registration.address(), registration))
        });
        Ok(Present(registrations.collect()))
    }

    /// The registration of an engine that states these facts.
    pub(crate) fn registration(
        &self,
        spec: &EngineSpec,
        facts: &Facts,
    ) -> Result<Registration, String> {
        let mut registration = registration(spec, facts).map_err(|error| error.to_string())?;
        if self.is_shared() {
            registration.profile.labels.insert(FOUND_LABEL.to_owned(), FOUND.to_owned());
        }
        Ok(registration)
    }

    /// Registers an engine. If the index has it with other facts, from a checkpoint, it is removed first, and loses its
    /// blocks.
    pub(crate) async fn register(&self, registration: &Registration) -> Result<(), String> {
        let mut outcome = self.send(registration).await;
        if let Err(status) = &outcome
            && status.code() == Code::FailedPrecondition
        {
            let workers = self.workers().await?;
            if let Some(present) = workers.iter().find_map(|worker| at(worker, registration)) {
                if !self.is_ours(&present) {
                    return Err("another source registered a worker with this id: remove it, or leave the engine \
                                out of the list"
                        .to_owned());
                }
                self.send_removal(registration).await;
                outcome = self.send(registration).await;
            } else if let Some(why) = conflict(registration, &workers) {
                return Err(why);
            }
        }
        outcome.map_err(|status| format!("the index refuses it: {}", status.message()))
    }

    /// Removes engines. Workers that others have registered in their place stay.
    pub(crate) async fn remove(&self, registrations: &[Registration]) {
        if registrations.is_empty() {
            return;
        }
        let present = if self.is_shared() { self.present().await.ok() } else { None };
        for registration in registrations {
            // Without a list, the index fails the removal, too.
            if present.as_ref().is_none_or(|present| present.has(registration)) {
                self.send_removal(registration).await;
            }
        }
    }

    async fn send(&self, registration: &Registration) -> Result<(), Status> {
        let request = RegisterWorkerRequest::from(registration);
        self.index.clone().register_worker(request).await.map(drop)
    }

    /// All workers of the index.
    async fn workers(&self) -> Result<Vec<WorkerInfo>, String> {
        let mut request = ListWorkersRequest::default();
        let mut workers = Vec::new();
        loop {
            let page = self.index.clone().list_workers(request.clone()).await;
            let page = page.map_err(|status| status.message().to_owned())?.into_inner();
            workers.extend(page.workers);
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                return Ok(workers);
            }
        }
    }

    /// Whether a worker of the index is one of these engines, now or earlier.
    fn is_ours(&self, registration: &Registration) -> bool {
        !self.is_shared() || is_found(registration)
    }

    async fn send_removal(&self, registration: &Registration) {
        let engine = registration.worker.as_str();
        let request = RemoveWorkerRequest {
            worker_id: engine.to_owned(),
            model: registration.partition.model().to_owned(),
            tenant: registration.partition.tenant().to_owned(),
        };
        if let Err(error) = self.index.clone().remove_worker(request).await
            && error.code() != Code::NotFound
        {
            tracing::warn!(engine, %error, "the engine's blocks cannot be removed");
        }
    }
}

/// Workers of an index that are these engines, or were.
#[derive(Debug, Default)]
pub(crate) struct Present(BTreeMap<WorkerAddress, Registration>);

impl Present {
    /// Whether the index has an engine, with whatever facts.
    pub(crate) fn has(&self, registration: &Registration) -> bool {
        self.0.contains_key(&registration.address())
    }

    /// Splits the workers into those of listed engines, each with its engine, and others. If the pod or address of an engine
    /// has changed, its worker is among the others.
    pub(crate) fn divide(
        self,
        specs: &[EngineSpec],
    ) -> (Vec<(EngineSpec, Registration)>, Vec<Registration>) {
        let specs: BTreeMap<_, _> = specs.iter().map(|spec| (spec.name(), spec)).collect();
        let mut listed = Vec::new();
        let mut others = Vec::new();
        for registration in self.0.into_values() {
            // The labels name the pod and the address.
            let mut registered = registration.profile.labels.clone();
            registered.remove(FOUND_LABEL);
            match specs.get(registration.worker.as_str()) {
                Some(spec) if labels(spec) == registered => {
                    listed.push(((*spec).clone(), registration))
                }
                Some(_) | None => others.push(registration),
            }
        }
        (listed, others)
    }
}

/// The registration of a worker of the index, if it has the same address as another one.
fn at(worker: &WorkerInfo, other: &Registration) -> Option<Registration> {
    let registration = Registration::try_from(worker.registration.clone()?).ok()?;
    (registration.address() == other.address()).then_some(registration)
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
