//! An index for tests, which counts its queries.

use super::index::Index;
use crate::client::IndexerClient;
use crate::config::{Calls, ClientConfig};
use crate::sharded::{ShardedClient, ShardedConfig};
use futures::future::{BoxFuture, FutureExt};
use kvasir_proto::codec::BoundedCodec;
use kvasir_proto::pb::{
    FindMatchesRequest, FindMatchesResponse, ReportReuseRequest, ReportReuseResponse,
};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// Maximum reports that a test has not read.
const REPORTS_MAX: usize = 16;

/// Computes the answer to a query. `None`: the server is unavailable.
type Answer = fn(&FindMatchesRequest) -> Option<FindMatchesResponse>;

#[derive(Clone)]
struct Shard {
    answer: Answer,
    /// Tiers of each query.
    queries: Arc<Mutex<Vec<Vec<i32>>>>,
    reports: Sender<ReportReuseRequest>,
}

/// Servers with one answer, one for each shard.
pub(super) struct FakeIndex {
    shards: Vec<Shard>,
    addresses: Vec<SocketAddr>,
    reports: Receiver<ReportReuseRequest>,
    _servers: JoinSet<()>,
}

impl FakeIndex {
    pub(super) async fn start(shards: usize, answer: Answer) -> Self {
        let mut servers = JoinSet::new();
        let mut addresses = Vec::new();
        let (sender, reports) = channel(REPORTS_MAX);
        let shard = |answer| Shard { answer, queries: Arc::default(), reports: sender.clone() };
        let shards: Vec<_> = vec![answer; shards].into_iter().map(shard).collect();
        for shard in &shards {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            addresses.push(listener.local_addr().expect("an address"));
            let server = Server::builder().add_service(shard.clone());
            servers.spawn(async move {
                server.serve_with_incoming(TcpIncoming::from(listener)).await.expect("a server");
            });
        }
        Self { shards, addresses, reports, _servers: servers }
    }

    /// A client of the servers, whose deadline never passes.
    pub(super) fn client(&self) -> Index {
        let deadline = Duration::from_secs(60);
        let client = ClientConfig { calls: Calls::Single, deadline, ..ClientConfig::default() };
        let urls: Vec<_> = self.addresses.iter().map(|at| format!("http://{at}")).collect();
        if let [url] = urls.as_slice() {
            return Index::One(IndexerClient::connect(url, client).expect("a URL"));
        }
        let config = ShardedConfig { client, ..ShardedConfig::default() };
        let shards = urls.into_iter().map(|url| [url]);
        Index::Sharded(ShardedClient::connect(shards, &config).expect("shards"))
    }

    /// The next report of reused tokens, to any shard.
    pub(super) async fn next_report(&mut self) -> ReportReuseRequest {
        self.reports.recv().await.expect("the servers run")
    }

    /// The queries since the last call: the tiers of each query, for each shard.
    pub(super) fn take_queries(&self) -> Vec<Vec<Vec<i32>>> {
        let take = |shard: &Shard| {
            std::mem::take(&mut *shard.queries.lock().unwrap_or_else(PoisonError::into_inner))
        };
        self.shards.iter().map(take).collect()
    }
}

impl UnaryService<FindMatchesRequest> for Shard {
    type Response = FindMatchesResponse;
    type Future = BoxFuture<'static, Result<Response<FindMatchesResponse>, Status>>;

    fn call(&mut self, request: Request<FindMatchesRequest>) -> Self::Future {
        let request = request.into_inner();
        let answer = (self.answer)(&request);
        self.queries.lock().unwrap_or_else(PoisonError::into_inner).push(request.tiers);
        let answer = answer.ok_or_else(|| Status::unavailable("the server stops"));
        async move { answer.map(Response::new) }.boxed()
    }
}

impl UnaryService<ReportReuseRequest> for Shard {
    type Response = ReportReuseResponse;
    type Future = BoxFuture<'static, Result<Response<ReportReuseResponse>, Status>>;

    fn call(&mut self, request: Request<ReportReuseRequest>) -> Self::Future {
        let report = request.into_inner();
        let refused = report.worker_id == "refused";
        let told = self.reports.try_send(report);
        let told = told.map_err(|error| Status::unavailable(error.to_string()));
        async move {
            told?;
            match refused {
                true => {
                    Err(Status::permission_denied("identity \"r\" may not act for this worker"))
                }
                false => Ok(Response::new(ReportReuseResponse::default())),
            }
        }
        .boxed()
    }
}

impl NamedService for Shard {
    const NAME: &'static str = "kvasir.v1.Indexer";
}

impl Service<http::Request<Body>> for Shard {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let shard = self.clone();
        async move {
            Ok(if request.uri().path().ends_with("/ReportReuse") {
                Grpc::new(BoundedCodec::<ReportReuseResponse, ReportReuseRequest>::default())
                    .unary(shard, request)
                    .await
            } else {
                Grpc::new(BoundedCodec::<FindMatchesResponse, FindMatchesRequest>::default())
                    .unary(shard, request)
                    .await
            })
        }
        .boxed()
    }
}
