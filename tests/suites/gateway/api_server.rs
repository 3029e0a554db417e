//! A Kubernetes API server as far as one client sees it: lists in pages, watches from a version, bookmarks, and all that may
//! go wrong with them.

use anyhow::{Context, Result};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::{Listener, serve};
use futures::stream;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use url::form_urlencoded;

const TOKEN: &str = "token-of-a-service-account";
/// Objects on a page of a list.
const PAGE: usize = 2;

/// How a server says that it no longer knows a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gone {
    /// By an event in the watch.
    #[default]
    Event,
    /// By the status of the answer.
    Status,
}

#[derive(Default)]
struct Cluster {
    version: u64,
    /// Watches from an earlier version are refused.
    oldest: u64,
    gone: Gone,
    /// Status of each answer, if the server refuses all.
    refusal: Option<u16>,
    objects: BTreeMap<(String, String), Value>,
    events: Vec<(u64, String, Value)>,
    lists: usize,
}

/// What streams wait for: a new event, or the end of all streams.
#[derive(Debug, Clone, Copy, Default)]
struct Signal {
    cuts: usize,
    version: u64,
}

#[derive(Clone)]
struct Shared {
    cluster: Arc<Mutex<Cluster>>,
    signal: watch::Sender<Signal>,
}

pub struct ApiServer {
    shared: Shared,
    folder: TempDir,
    _serving: JoinSet<()>,
}

impl ApiServer {
    pub async fn start() -> Result<Self> {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
        let key = PrivateKeyDer::from_pem_slice(signing_key.serialize_pem().as_bytes())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)?;
        let tcp = TcpListener::bind("127.0.0.1:0").await?;
        let at = tcp.local_addr()?;
        let listener = Tls { tcp, acceptor: TlsAcceptor::from(Arc::new(config)) };
        let shared = Shared { cluster: Arc::default(), signal: watch::Sender::default() };
        let routes = Router::new()
            .route("/api/v1/namespaces/{namespace}/{kind}", get(answer))
            .route("/apis/discovery.k8s.io/v1/namespaces/{namespace}/{kind}", get(answer))
            .with_state(shared.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move { drop(serve(listener, routes).await) });
        let folder = tempfile::tempdir()?;
        let api = Self { shared, folder, _serving: serving };
        std::fs::write(api.folder.path().join("ca.pem"), cert.pem())?;
        std::fs::write(api.kubeconfig(), api.config(at).to_string())?;
        Ok(api)
    }

    /// File for `KUBECONFIG`.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("config")
    }

    fn config(&self, at: SocketAddr) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": {
                "server": format!("https://{at}"),
                "certificate-authority": self.folder.path().join("ca.pem"),
            }}],
            "users": [{"name": "me", "user": {"token": TOKEN}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "prod"}}],
        })
    }

    /// Creates or changes an object.
    pub fn put(&self, kind: &str, mut object: Value) {
        let mut cluster = self.shared.cluster();
        cluster.version += 1;
        object["metadata"]["namespace"] = json!("prod");
        object["metadata"]["resourceVersion"] = json!(cluster.version.to_string());
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let former = cluster.objects.insert((kind.to_owned(), name), object.clone());
        let event = if former.is_some() { "MODIFIED" } else { "ADDED" };
        self.tell(&mut cluster, kind, json!({"type": event, "object": object}));
    }

    pub fn delete(&self, kind: &str, name: &str) -> Result<()> {
        let mut cluster = self.shared.cluster();
        cluster.version += 1;
        let object = cluster.objects.remove(&(kind.to_owned(), name.to_owned()));
        let mut object = object.with_context(|| format!("no {kind} {name}"))?;
        object["metadata"]["resourceVersion"] = json!(cluster.version.to_string());
        self.tell(&mut cluster, kind, json!({"type": "DELETED", "object": object}));
        Ok(())
    }

    /// Sends a bookmark to all watches.
    pub fn mark(&self) {
        let mut cluster = self.shared.cluster();
        cluster.version += 1;
        let version = cluster.version.to_string();
        let object =
            json!({"apiVersion": "v1", "kind": "Any", "metadata": {"resourceVersion": version}});
        self.tell(&mut cluster, "", json!({"type": "BOOKMARK", "object": object}));
    }

    /// Breaks all watches, within a line.
    pub fn cut(&self) {
        self.shared.signal.send_modify(|signal| signal.cuts += 1);
    }

    /// Forgets all versions until now, and says so in this way.
    pub fn forget(&self, gone: Gone) {
        let mut cluster = self.shared.cluster();
        cluster.version += 1;
        (cluster.oldest, cluster.gone) = (cluster.version, gone);
        cluster.events.clear();
    }

    /// Answers everything with this status, or no longer.
    pub fn refuse(&self, status: Option<u16>) {
        self.shared.cluster().refusal = status;
    }

    /// Number of whole lists that were begun.
    pub fn lists(&self) -> usize {
        self.shared.cluster().lists
    }

    fn tell(&self, cluster: &mut Cluster, kind: &str, event: Value) {
        let version = cluster.version;
        cluster.events.push((version, kind.to_owned(), event));
        self.shared.signal.send_modify(|signal| signal.version = version);
    }
}

impl Shared {
    fn cluster(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Events of a kind after a version.
    fn after(&self, version: u64, asked: &Asked) -> Vec<(u64, Value)> {
        let cluster = self.cluster();
        let later = cluster.events.iter().filter(|(at, kind, event)| {
            let is_mark = kind.is_empty() && asked.has("allowWatchBookmarks", "true");
            *at > version && (is_mark || (*kind == asked.kind && asked.selects(&event["object"])))
        });
        later.map(|(at, _, event)| (*at, event.clone())).collect()
    }
}

/// A request.
#[derive(Debug, Clone)]
struct Asked {
    kind: String,
    query: BTreeMap<String, String>,
    is_metadata: bool,
}

impl Asked {
    fn has(&self, key: &str, value: &str) -> bool {
        self.query.get(key).is_some_and(|given| given == value)
    }

    fn selects(&self, object: &Value) -> bool {
        let terms = |key| self.query.get(key).map_or("", String::as_str).split(',');
        let has = |term: &str, at: &dyn Fn(&str) -> Value| {
            term.split_once('=').is_none_or(|(key, value)| at(key) == value)
        };
        let metadata = &object["metadata"];
        terms("labelSelector").all(|term| has(term, &|key| metadata["labels"][key].clone()))
            && terms("fieldSelector").all(|term| has(term, &|_name| metadata["name"].clone()))
    }
}

fn refuse(code: u16, message: &str) -> Response {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code});
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_REQUEST);
    (code, status.to_string()).into_response()
}

async fn answer(
    State(shared): State<Shared>,
    Path((namespace, kind)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    if header("authorization") != format!("Bearer {TOKEN}") {
        return refuse(401, "Unauthorized");
    }
    if let Some(code) = shared.cluster().refusal {
        return refuse(code, &format!("{kind} is forbidden: cannot list resource {kind:?}"));
    }
    let query = form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned().collect();
    let is_metadata = header("accept").contains("as=PartialObjectMetadata");
    let asked = Asked { kind, query, is_metadata };
    if asked.kind == "pods" && !is_metadata {
        return refuse(406, "whole pods are larger than what an index needs");
    }
    if namespace != "prod" {
        return list(&mut Cluster::default(), &asked);
    }
    if asked.has("watch", "true") {
        return stream_events(shared.clone(), asked);
    }
    list(&mut shared.cluster(), &asked)
}

fn list(cluster: &mut Cluster, asked: &Asked) -> Response {
    let from: usize = asked.query.get("continue").map_or(0, |text| text.parse().unwrap_or(0));
    cluster.lists += usize::from(from == 0);
    let objects = cluster.objects.iter().filter(|((kind, _), _)| *kind == asked.kind);
    let objects: Vec<_> =
        objects.map(|(_, object)| object).filter(|at| asked.selects(at)).collect();
    let items: Vec<_> = objects.iter().skip(from).take(PAGE).collect();
    let rest = objects.len().saturating_sub(from + PAGE);
    let more = if rest > 0 { (from + PAGE).to_string() } else { String::new() };
    let kind = if asked.is_metadata { "PartialObjectMetadataList" } else { "List" };
    let metadata = json!({"resourceVersion": cluster.version.to_string(), "continue": more});
    json!({"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items})
        .to_string()
        .into_response()
}

fn stream_events(shared: Shared, asked: Asked) -> Response {
    let version =
        asked.query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
    let (oldest, gone) = {
        let cluster = shared.cluster();
        (cluster.oldest, cluster.gone)
    };
    if version < oldest {
        let message = format!("too old resource version: {version} ({oldest})");
        if gone == Gone::Status {
            return refuse(410, &message);
        }
        let status = json!({"kind": "Status", "status": "Failure", "message": message, "reason": "Expired", "code": 410});
        return format!("{}\n", json!({"type": "ERROR", "object": status})).into_response();
    }
    let signals = shared.signal.subscribe();
    let cuts = signals.borrow().cuts;
    let watch = Stream { shared, asked, version, signals, cuts, ready: Vec::new(), is_cut: false };
    Body::from_stream(stream::unfold(watch, Stream::next)).into_response()
}

/// A watch.
struct Stream {
    shared: Shared,
    asked: Asked,
    version: u64,
    signals: watch::Receiver<Signal>,
    /// Cuts before its start.
    cuts: usize,
    /// Parts of lines that are sent next, the first one last.
    ready: Vec<Bytes>,
    is_cut: bool,
}

impl Stream {
    async fn next(mut self) -> Option<(std::io::Result<Bytes>, Self)> {
        loop {
            if let Some(part) = self.ready.pop() {
                return Some((Ok(part), self));
            }
            if self.is_cut {
                return Some((Err(std::io::Error::other("cut")), self));
            }
            if self.signals.borrow_and_update().cuts != self.cuts {
                self.is_cut = true;
                self.ready.push(Bytes::from_static(b"{\"type\": \"BOOKM"));
                continue;
            }
            let later = self.shared.after(self.version, &self.asked);
            if let Some((at, _)) = later.last() {
                self.version = *at;
                let text: String = later.iter().map(|(_, event)| format!("{event}\n")).collect();
                // A line may come in two parts.
                let (first, second) = text.split_at(text.len() / 2);
                self.ready = vec![Bytes::from(second.to_owned()), Bytes::from(first.to_owned())];
                continue;
            }
            if self.signals.changed().await.is_err() {
                return None;
            }
        }
    }
}

/// Connections with TLS.
struct Tls {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            let Ok((stream, from)) = self.tcp.accept().await else { continue };
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, from);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}
