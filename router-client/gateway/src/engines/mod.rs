//! Engines: addresses and adapters by worker.

mod adapters;

pub use adapters::watch;

use crate::config::EngineConfig;
use adapters::NamedModels;
use hyper::Uri;
use kvasir_proto::convert::ImageTokens;
use kvasir_proto::types::{ADDRESS_LABEL, PartitionKey, WorkerId};
use kvasir_router::fleet::Listing;
use router_client::ListedWorker;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch::Receiver;

/// Directory of engines: addresses and adapters by worker. Clones share both.
#[derive(Debug, Clone)]
pub struct Directory {
    listed: Receiver<Arc<Listing>>,
    stated: Arc<BTreeMap<WorkerId, Uri>>,
    named: NamedModels,
}

/// The engine of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    /// Address of the engine.
    pub address: Uri,
    /// Whether requests must name a rank, because the engine has several.
    pub has_ranks: bool,
}

/// The model for a request: a listed model, a LoRA adapter that one of its workers has loaded, or another name under
/// which one of its workers serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Model and tenant.
    pub partition: PartitionKey,
    /// Name of the adapter; "" for none.
    pub adapter: String,
    /// Another name of the model, under which some engines serve it; "" for none.
    pub alias: String,
}

impl Directory {
    /// Creates a directory. Configured addresses override the workers' labels.
    #[must_use]
    pub fn new(listed: Receiver<Arc<Listing>>, config: &EngineConfig) -> Self {
        let stated = Arc::new(config.addresses.clone());
        Self { listed, stated, named: NamedModels::default() }
    }

    /// The engine of a worker; `None` if its address is unknown.
    #[must_use]
    pub fn engine(&self, partition: &PartitionKey, worker: &WorkerId) -> Option<Engine> {
        let listing = Arc::clone(&self.listed.borrow());
        let listed = listing.get(partition)?.get(worker)?;
        Some(Engine { address: self.address(listed)?, has_ranks: listed.ranks.len() > 1 })
    }

    fn address(&self, listed: &ListedWorker) -> Option<Uri> {
        let of_label = || listed.profile.labels.get(ADDRESS_LABEL)?.parse().ok();
        self.stated.get(&listed.worker).cloned().or_else(of_label)
    }

    /// Whether a worker has an adapter, from its registration or its engine's answer; `None` without an answer.
    fn has_adapter(&self, listed: &ListedWorker, adapter: &str) -> Option<bool> {
        if listed.adapters.contains(adapter) {
            return Some(true);
        }
        self.named.has_adapter(&self.address(listed)?, adapter)
    }

    /// Whether the engine of a worker serves the partition's model under another name, too.
    fn has_alias(&self, listed: &ListedWorker, alias: &str, partition: &PartitionKey) -> bool {
        let engine = self.address(listed);
        engine.is_some_and(|engine| self.named.has_alias(&engine, alias, partition.model()))
    }

    /// Addresses of a partition's engines, except engines of workers in `without`.
    #[must_use]
    pub fn addresses(&self, partition: &PartitionKey, without: &[WorkerId]) -> Vec<Uri> {
        let listing = Arc::clone(&self.listed.borrow());
        let workers = listing.get(partition).into_iter().flat_map(BTreeMap::values);
        let workers = workers.filter(|at| !without.contains(&at.worker));
        workers.filter_map(|at| self.address(at)).collect()
    }

    /// Addresses of all engines.
    #[must_use]
    pub fn all_addresses(&self) -> Vec<Uri> {
        let listing = Arc::clone(&self.listed.borrow());
        listing.keys().flat_map(|partition| self.addresses(partition, &[])).collect()
    }

    /// Workers of a partition whose engines have no known address.
    #[must_use]
    pub fn unaddressed(&self, partition: &PartitionKey) -> Vec<WorkerId> {
        let listing = Arc::clone(&self.listed.borrow());
        let workers = listing.get(partition).into_iter().flat_map(BTreeMap::keys);
        workers.filter(|at| self.engine(partition, at).is_none()).cloned().collect()
    }

    /// The form of image tokens used by most of a partition's workers. At workers with another form, no block from the
    /// first image on is found.
    #[must_use]
    pub fn image_tokens(&self, partition: &PartitionKey) -> ImageTokens {
        let listing = Arc::clone(&self.listed.borrow());
        let workers = listing.get(partition).into_iter().flat_map(BTreeMap::values);
        let mut counts = BTreeMap::<_, usize>::new();
        workers.for_each(|at| *counts.entry(at.image_tokens).or_default() += 1);
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        most.map_or(ImageTokens::Identifier, |(form, _)| form)
    }

    /// Whether the index has a block of any worker in a partition.
    #[must_use]
    pub fn has_blocks(&self, partition: &PartitionKey) -> bool {
        let listing = Arc::clone(&self.listed.borrow());
        listing.get(partition).is_some_and(|workers| workers.values().any(|at| at.has_blocks))
    }

    /// Finds the partition that serves a model, an adapter, or another name of a model. Returns `None` if every worker of
    /// the tenant lacks it.
    #[must_use]
    pub fn target(&self, tenant: &str, model: &str) -> Option<Target> {
        let partition = PartitionKey::new(model, tenant).ok()?;
        let listing = Arc::clone(&self.listed.borrow());
        if listing.contains_key(&partition) {
            return Some(Target { partition, adapter: String::new(), alias: String::new() });
        }
        let has = |workers: &BTreeMap<WorkerId, ListedWorker>| {
            workers.values().any(|at| self.has_adapter(at, model) == Some(true))
        };
        let of_tenant = || listing.iter().filter(|(key, _)| key.tenant() == tenant);
        if let Some((partition, _)) = of_tenant().find(|(_, workers)| has(workers)) {
            let (partition, adapter) = (partition.clone(), model.to_owned());
            return Some(Target { partition, adapter, alias: String::new() });
        }
        let is_alias = |(key, workers): &(&PartitionKey, &BTreeMap<WorkerId, ListedWorker>)| {
            workers.values().any(|at| self.has_alias(at, model, key))
        };
        let (partition, _) = of_tenant().find(is_alias)?;
        let (partition, alias) = (partition.clone(), model.to_owned());
        Some(Target { partition, adapter: String::new(), alias })
    }

    /// Returns the workers whose engines have listed their adapters without the target's adapter, or have not listed the
    /// target's alias.
    #[must_use]
    pub fn workers_without(&self, target: &Target) -> Vec<WorkerId> {
        let Target { partition, adapter, alias } = target;
        let listing = Arc::clone(&self.listed.borrow());
        let workers = listing.get(partition).into_iter().flatten();
        let lacking = workers.filter(|(_, at)| {
            (!adapter.is_empty() && self.has_adapter(at, adapter) == Some(false))
                || (!alias.is_empty() && !self.has_alias(at, alias, partition))
        });
        lacking.map(|(id, _)| id.clone()).collect()
    }

    /// Returns the models and adapters of a tenant, and further names of models, sorted by name.
    #[must_use]
    pub fn models(&self, tenant: &str) -> Vec<String> {
        let listing = Arc::clone(&self.listed.borrow());
        let mut models = Vec::new();
        for (key, workers) in listing.iter().filter(|(key, _)| key.tenant() == tenant) {
            models.push(key.model().to_owned());
            models.extend(workers.values().flat_map(|at| at.adapters.iter().cloned()));
            for engine in workers.values().filter_map(|at| self.address(at)) {
                models.extend(self.named.adapters(&engine));
                models.extend(self.named.aliases(&engine, key.model()));
            }
        }
        models.sort();
        models.dedup();
        models
    }

    /// Returns one line for each model with workers that get no requests because their address is unknown, and one for
    /// each model that some engines serve under another model's name.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let listing = Arc::clone(&self.listed.borrow());
        let shared = listing.iter().filter_map(|(key, workers)| {
            let (engine, name) = workers.values().find_map(|at| {
                let engine = self.address(at)?;
                let mut aliases = self.named.aliases(&engine, key.model()).into_iter();
                let is_model = |alias: &String| {
                    let other = PartitionKey::new(alias, key.tenant());
                    other.is_ok_and(|other| listing.contains_key(&other))
                };
                let name = aliases.find(is_model)?;
                Some((engine, name))
            })?;
            Some(format!(
                "{key}: {engine} also serves it as {name}, the first name of other engines, which alone get requests for \
                 {name}: give engines of one model the same first --served-model-name"
            ))
        });
        let unknown = listing.keys().filter_map(|key| {
            let unknown = self.unaddressed(key);
            let first = unknown.first()?;
            let count = unknown.len();
            Some(format!(
                "{key}: the engine's address is not known of {count} workers, such as {first}: give each the label \
                 {ADDRESS_LABEL}, or start the gateway with --engine {first}=URL"
            ))
        });
        unknown.chain(shared).collect()
    }
}
