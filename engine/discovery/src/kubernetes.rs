//! Follows the pods of a Kubernetes service.

use crate::pods::{Listed, PodMeta, ServicePort, engines};
use crate::spec::Stated;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, Resource, ResourceExt};
use kube::core::NamespaceResourceScope;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{Store, store};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Client, Error};
use kvasir_tasks::causes::causes;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::future::pending;
use std::time::Duration;
use tokio::select;
use tokio::time::sleep;

/// Maximum time to connect to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which the API server ends a watch, in seconds. A connection that died silently is noticed 5 seconds later.
const WATCH_SECONDS: u32 = 60;
/// Maximum silence of the API server: longer than a watch without events.
const READ_TIMEOUT: Duration = Duration::from_secs(75);
/// Maximum number of changes that are applied as one.
const CHANGES_MAX: usize = 1_000;
/// Pause before another attempt to watch.
const PAUSE: Duration = Duration::from_secs(2);
/// Label of the endpoint slices of a service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// HTTP status: the version from which a watch starts is too old.
const GONE: u16 = 410;

/// A service's pods, as the API server tells them.
pub(crate) struct ServiceWatch {
    at: ServicePort,
    stated: Stated,
    client: Client,
    namespace: String,
    service: Followed<Service>,
    slices: Followed<EndpointSlice>,
    /// Labels by which the service selects its pods, and the pods; `None` for a service without a selector.
    pods: Option<(BTreeMap<String, String>, Followed<PodMeta>)>,
}

impl ServiceWatch {
    /// Starts to watch.
    ///
    /// # Errors
    /// If no API server is configured.
    pub(crate) async fn start(at: &ServicePort, stated: &Stated) -> Result<Self, String> {
        let mut config = kube::Config::infer().await.map_err(|error| {
            let why = causes(&error);
            format!(
                "kubernetes: {why}: in a pod, mount the service account's token (automountServiceAccountToken: true); elsewhere, \
                 name a kubeconfig in KUBECONFIG"
            )
        })?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(READ_TIMEOUT);
        config.reset_reader_on_write = true;
        // Its pauses between attempts grow to minutes, in silence.
        config.default_retry = false;
        let namespace = at.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config)
            .map_err(|error| format!("kubernetes: {}: correct the kubeconfig", causes(&error)))?;
        let named = Config::default().fields(&format!("metadata.name={}", at.service));
        let own = Config::default().labels(&format!("{SERVICE_LABEL}={}", at.service));
        let service = Followed::new(Api::namespaced(client.clone(), &namespace), named);
        let slices = Followed::new(Api::namespaced(client.clone(), &namespace), own);
        let (at, stated) = (at.clone(), stated.clone());
        Ok(Self { at, stated, client, namespace, service, slices, pods: None })
    }

    /// The service's engines, as soon as they are known. While the API server is away, the last ones, with the reason.
    ///
    /// # Errors
    /// If the API server refuses or is silent before the first list is complete; if the service or its slices are missing.
    pub(crate) async fn list(&mut self) -> Result<Listed, String> {
        while !self.is_known() {
            if let Some(why) = self.problem() {
                return Err(format!("kubernetes: {why}"));
            }
            self.changed().await;
        }
        if self.service.known.is_empty() {
            let Self { at: ServicePort { service, .. }, namespace, .. } = self;
            return Err(format!("kubernetes: namespace {namespace} has no service {service}"));
        }
        // The API server keeps a slice even of a service whose pods are all gone.
        if self.pods.is_some() && self.slices.known.is_empty() {
            let service = &self.at.service;
            return Err(format!("kubernetes: service {service} has no endpointslices yet"));
        }
        let pods = self.pods.as_ref().map(|(_, pods)| pods.known.state());
        let slices = self.slices.known.state();
        let mut listed = engines(&self.at, &self.stated, &slices, pods.as_deref());
        if let Some((selector, _)) = self.pods.as_ref().filter(|(_, pods)| pods.known.is_empty()) {
            let why = format!(
                "its selector {} matches no pod in namespace {}: correct the selector, or start engines",
                terms(selector),
                self.namespace
            );
            listed.faults.push((format!("service {}", self.at.service), why));
        }
        listed.faults.extend(self.problem().map(|why| ("kubernetes".to_owned(), why)));
        Ok(listed)
    }

    /// Waits until the service or its pods change, or a problem appears. Further changes that are known by then are part of
    /// the same one. May be cancelled at any time.
    pub(crate) async fn changed(&mut self) {
        self.change().await;
        let mut more = CHANGES_MAX;
        while more > 0 && self.change().now_or_never().is_some() {
            more -= 1;
        }
    }

    async fn change(&mut self) {
        let pods = async {
            match &mut self.pods {
                Some((_, pods)) => pods.next().await,
                None => pending().await,
            }
        };
        select! {
            () = self.service.next() => self.follow_selector(),
            () = self.slices.next() => {}
            () = pods => {}
        }
    }

    /// Watches the pods that the service selects now.
    fn follow_selector(&mut self) {
        let service = self.service.known.state().into_iter().next();
        let selector = service.and_then(|service| service.spec.as_ref()?.selector.clone());
        let selector = selector.filter(|selector| !selector.is_empty());
        if self.pods.as_ref().map(|(present, _)| present) == selector.as_ref() {
            return;
        }
        self.pods = selector.map(|selector| {
            let labels = Config::default().labels(&terms(&selector));
            let api = Api::namespaced(self.client.clone(), &self.namespace);
            (selector, Followed::new(api, labels))
        });
    }

    fn is_known(&self) -> bool {
        let pods = self.pods.as_ref().is_none_or(|(_, pods)| pods.is_known);
        self.service.is_known && self.slices.is_known && pods
    }

    fn problem(&self) -> Option<String> {
        let pods = self.pods.as_ref().and_then(|(_, pods)| pods.problem.as_ref());
        self.service.problem.as_ref().or(self.slices.problem.as_ref()).or(pods).cloned()
    }
}

impl Debug for ServiceWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceWatch").field("at", &self.at).finish_non_exhaustive()
    }
}

/// A selector as text.
fn terms(selector: &BTreeMap<String, String>) -> String {
    let terms = selector.iter().map(|(key, value)| format!("{key}={value}"));
    terms.collect::<Vec<_>>().join(",")
}

/// Objects of one kind, as they are at the API server.
struct Followed<K: Object> {
    api: Api<K>,
    config: Config,
    events: BoxStream<'static, watcher::Result<Event<K>>>,
    writer: Writer<K>,
    known: Store<K>,
    /// Whether all objects have been listed once.
    is_known: bool,
    /// Why the last attempt failed, until one succeeds.
    problem: Option<String>,
}

/// An object of the API in a namespace.
trait Object:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl Object for Service {}
impl Object for EndpointSlice {}
impl Object for PodMeta {}

impl<K: Object> Followed<K> {
    fn new(api: Api<K>, config: Config) -> Self {
        let config = config.timeout(WATCH_SECONDS);
        let (known, writer) = store();
        let events = watch(&api, &config, Duration::ZERO);
        Self { api, config, events, writer, known, is_known: false, problem: None }
    }

    /// Waits until objects have changed, or a problem appears. May be cancelled at any time.
    async fn next(&mut self) {
        loop {
            match self.events.next().await {
                Some(Ok(event)) => {
                    self.writer.apply_watcher_event(&event);
                    match event {
                        // Until all objects are listed, the earlier ones hold.
                        Event::Init | Event::InitApply(_) => {}
                        Event::InitDone | Event::Apply(_) | Event::Delete(_) => {
                            self.is_known = true;
                            self.problem = None;
                            return;
                        }
                    }
                }
                Some(Err(error)) => {
                    if is_stuck(&error) {
                        self.events = watch(&self.api, &self.config, PAUSE);
                    }
                    let problem = explain(&error).or_else(|| self.problem.clone());
                    if self.problem != problem {
                        self.problem = problem;
                        return;
                    }
                }
                None => self.events = watch(&self.api, &self.config, PAUSE),
            }
        }
    }
}

/// Lists and then watches objects, after a pause.
fn watch<K: Object>(
    api: &Api<K>,
    config: &Config,
    pause: Duration,
) -> BoxStream<'static, watcher::Result<Event<K>>> {
    let events = watcher(api.clone(), config.clone()).backoff(Pauses);
    // The largest part of an object's metadata, which nobody reads.
    let events = events.modify(|object| object.managed_fields_mut().clear());
    sleep(pause).map(|()| events).flatten_stream().boxed()
}

/// Whether the stream has to be made again: it would repeat a request that was refused, such as one with a version that is
/// gone, or succeed without an event that ends the problem.
const fn is_stuck(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchError(_)
        // An event that cannot be read, and would not come again.
        | watcher::Error::WatchFailed(Error::SerdeError(_)) => true,
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => false,
    }
}

/// Explains why objects cannot be watched. `None`: the watch was interrupted, and starts again by itself.
fn explain(error: &watcher::Error) -> Option<String> {
    let status = match error {
        watcher::Error::InitialListFailed(Error::Api(status))
        | watcher::Error::WatchStartFailed(Error::Api(status))
        | watcher::Error::WatchError(status) => status,
        watcher::Error::WatchFailed(_) => return None,
        watcher::Error::InitialListFailed(other) | watcher::Error::WatchStartFailed(other) => {
            return Some(format!("no answer of the API server: {}", causes(other)));
        }
        watcher::Error::NoResourceVersion => return Some(error.to_string()),
    };
    match status.code {
        GONE => None,
        401 => Some(format!(
            "{}: the API server does not accept the credentials: renew the token of the kubeconfig or of the service account",
            status.message
        )),
        403 => Some(format!(
            "{}: give the service account a role that may list and watch services, endpointslices and pods",
            status.message
        )),
        code => Some(format!("the API server answers {code}: {}", status.message)),
    }
}

/// Pauses of [`PAUSE`], without growth: kube resets growing ones at each attempt.
struct Pauses;

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(PAUSE)
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {}
}
