//! The processes of one pass: engines with step times, an index that reads their events, a router, and a spare engine
//! to measure the index's delay.

use super::super::feed::worker_id;
use super::super::options::ClusterOptions;
use super::super::way::Policy;
use crate::client::{self, Indexer};
use crate::engine::openai::ServerProcess;
use crate::engine::timed::EngineOptions;
use crate::server::Server;
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use kvasir_proto::pb::router_client::RouterClient;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tonic::transport::{Channel, Endpoint};

/// Name of the model.
pub(super) const MODEL: &str = "sweep";
/// Name of the spare engine's model.
pub(super) const SPARE_MODEL: &str = "spare";
/// Timeout for the processes to find each other.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Service `Router`.
pub(super) type Router = RouterClient<Channel>;

/// All processes; dropping it kills them.
#[derive(Debug)]
pub(super) struct Fleet {
    engines: Vec<ServerProcess>,
    spare: ServerProcess,
    index: Server,
    routing: Server,
    pub(super) indexer: Indexer,
    pub(super) router: Router,
}

// === impl Fleet ===

impl Fleet {
    /// Starts all processes on free ports of the loopback interface. Waits until the router lists each engine and the
    /// index is connected to it.
    ///
    /// # Errors
    /// If a binary is missing, or a process does not start or is not listed in time.
    pub(super) async fn start(
        options: &ClusterOptions,
        policy: Policy,
        time_scale: f64,
    ) -> Result<Self> {
        let flags = engine_flags(&options.engine, time_scale);
        let start = async |model: &str| {
            let flags: Vec<_> =
                flags.iter().map(String::as_str).chain(["--model", model]).collect();
            ServerProcess::start(&flags).await.context("start an engine")
        };
        let mut engines = Vec::new();
        let mut workers = Vec::new();
        for number in 0..options.engines {
            let engine = start(MODEL).await?;
            workers.push((MODEL, worker_id(number)?.as_str().to_owned(), engine));
        }
        workers.push((SPARE_MODEL, "spare".to_owned(), start(SPARE_MODEL).await?));
        let specs: Vec<_> = workers.iter().map(|at| worker_flag(at, options)).collect();
        let flags: Vec<_> = specs.iter().flat_map(|spec| ["--worker", spec]).collect();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let index = Server::start_with(any, any, &flags).await.context("start the index")?;
        let mut indexer = client::connect(index.addresses.grpc).await?;
        for (model, id, engine) in workers {
            let connected = |source: &pb::SourceInfo| source.connected;
            let worker = (model, id.as_str());
            client::wait_for_sources(&mut indexer, worker, "connected", START_TIMEOUT, connected)
                .await?;
            engines.push(engine);
        }
        let spare = engines.pop().context("the spare engine")?;
        let (routing, router) = start_router(index.addresses.grpc, options, policy).await?;
        Ok(Self { engines, spare, index, routing, indexer, router })
    }

    /// HTTP addresses of the engines, by number.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.engines.iter().map(|engine| engine.addresses().http).collect()
    }

    /// HTTP address of the spare engine.
    pub(super) fn spare(&self) -> SocketAddr {
        self.spare.addresses().http
    }

    /// Stops all processes and waits until they have ended.
    ///
    /// # Errors
    /// If an engine does not end, or ends with an error.
    pub(super) async fn stop(mut self) -> Result<()> {
        self.routing.stop().await;
        self.index.stop().await;
        for engine in self.engines.into_iter().chain([self.spare]) {
            engine.stop().await?;
        }
        Ok(())
    }
}

/// Starts a router over the index with a policy, and waits until it lists all engines.
async fn start_router(
    index: SocketAddr,
    options: &ClusterOptions,
    policy: Policy,
) -> Result<(Server, Router)> {
    let mode = policy.to_string();
    let index = index.to_string();
    let overlap = options.cost.overlap_score_weight.to_string();
    let load = format!("active-prefill-weight={}", options.cost.active_prefill_weight);
    let flags = [
        "--indexer",
        &index,
        "--mode",
        &mode,
        "--overlap-score-weight",
        &overlap,
        "--load",
        &load,
        // The engines of the sweep are not new, so slow start is off.
        "--worker-health",
        "slow-start=0s",
        // A momentarily busy machine must not change the choice.
        "--timing",
        "index-deadline=5s,discovery-interval=100ms",
    ];
    let routing = Server::router(&flags).await.context("start the router")?;
    let endpoint = Endpoint::from_shared(format!("http://{}", routing.addresses.grpc))?;
    let mut router = RouterClient::new(endpoint.tcp_nodelay(true).connect().await?);
    let deadline = Instant::now() + START_TIMEOUT;
    let request = pb::GetLoadsRequest { model: Some(MODEL.to_owned()), tenant: None };
    while router.get_loads(request.clone()).await?.into_inner().ranks.len() < options.engines {
        ensure!(Instant::now() < deadline, "the router does not know all engines");
        sleep(POLL_INTERVAL).await;
    }
    Ok((routing, router))
}

fn engine_flags(options: &EngineOptions, time_scale: f64) -> Vec<String> {
    let EngineOptions { model, block_size, capacity_blocks, .. } = options;
    let flags = [
        ("--block-size", *block_size as u64),
        ("--cache-tokens", (capacity_blocks * block_size) as u64),
        ("--step-tokens-max", options.step_tokens_max as u64),
        ("--running-max", options.running_max as u64),
        ("--step-ns", model.step),
        ("--prefill-token-ns", model.prefill_token),
        ("--decode-sequence-ns", model.decode_sequence),
        ("--context-token-ns", model.context_token),
    ];
    let flags = flags.iter().flat_map(|(name, value)| [(*name).to_owned(), value.to_string()]);
    flags.chain(["--time-scale".to_owned(), time_scale.to_string()]).collect()
}

/// The index's flag for an engine.
fn worker_flag(
    (model, id, engine): &(&str, String, ServerProcess),
    options: &ClusterOptions,
) -> String {
    let block_size = options.engine.block_size;
    let at = engine.addresses();
    let events = &at.events;
    let replay = &at.replay;
    let capacity = match options.states_capacity {
        true => format!(",total-kv-blocks={}", options.engine.capacity_blocks),
        false => String::new(),
    };
    format!(
        "id={id},model={model},block-size={block_size},engine=vllm,endpoint={events},\
         replay={replay}{capacity}"
    )
}
