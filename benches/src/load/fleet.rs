//! The fleet of the queries, and how its blocks are published to the index.
//!
//! 64 workers with blocks of 16 tokens. Two workers have each long prompt and each own prompt; all workers have the
//! system prompts.

use anyhow::{Context, Result, bail, ensure};
use bench_figures::random::mixed;
use futures::{StreamExt, TryStreamExt, stream};
use kvasir_proto::hash::{Namespace, local_hashes, sequence_hashes, tokens_le};
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
use kvasir_proto::pb;
use kvasir_proto::pb::event_ingest_client::EventIngestClient;
use kvasir_proto::pb::publish_events_request::Message as Request;
use kvasir_proto::pb::publish_events_response::Message as Response;
use kvasir_proto::types::LocalHash;
use kvasir_sim::client::Indexer;
use std::net::SocketAddr;
use tonic::transport::{Channel, Endpoint};

/// Model of the fleet.
pub const MODEL: &str = "load";
/// Tokens per block.
pub const BLOCK_SIZE: u32 = 16;
/// Blocks per event, as sent by engines during a prefill.
pub const EVENT_BLOCKS: usize = 16;

const BLOCK_TOKENS: usize = BLOCK_SIZE as usize;
/// Number of workers of the fleet.
pub const WORKERS: u64 = 64;
const BATCH_EVENTS: usize = 32;
/// Number of workers that publish concurrently while the index is filled.
const FILLED_AT_ONCE: usize = 4;
const TOKEN_IDS: u64 = 128_000;

/// A kind of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Own prompts, of 512 blocks.
    Own,
    /// Long prompts, of 8,192 blocks.
    Long,
    /// System prompts, of 256 blocks.
    System,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Own, Self::Long, Self::System];

    const fn blocks(self) -> usize {
        match self {
            Self::Own => 512,
            Self::Long => 8_192,
            Self::System => 256,
        }
    }
}

/// Size of the fleet.
#[derive(Debug, Clone, Copy)]
pub struct Fleet {
    own: u64,
    long: u64,
    system: u64,
}

impl Fleet {
    /// Creates a fleet of about 1.6 M (worker, block) pairs, or a tenth of that if `quick`.
    pub const fn new(quick: bool) -> Self {
        if quick {
            Self { own: 96, long: 4, system: 2 }
        } else {
            Self { own: 1_024, long: 16, system: 16 }
        }
    }

    /// Number of prompts of a kind.
    pub const fn prompts(self, kind: Kind) -> u64 {
        match kind {
            Kind::Own => self.own,
            Kind::Long => self.long,
            Kind::System => self.system,
        }
    }

    /// Workers that have a prompt.
    pub fn holders(self, kind: Kind, number: u64) -> Vec<u64> {
        match kind {
            Kind::System => (0..WORKERS).collect(),
            Kind::Own | Kind::Long => vec![number % WORKERS, (number * 7 + 31) % WORKERS],
        }
    }

    /// Number of (worker, block) pairs of all prompts.
    pub fn pairs(self) -> usize {
        let of = |kind: Kind| {
            let numbers = 0..self.prompts(kind);
            numbers.map(|number| self.holders(kind, number).len() * kind.blocks()).sum::<usize>()
        };
        Kind::ALL.into_iter().map(of).sum()
    }

    /// Tokens of the first `blocks` blocks of a prompt.
    pub fn tokens(self, kind: Kind, number: u64, blocks: usize) -> Vec<u32> {
        let stem = mixed((kind as u64) << 32 | number);
        let token = |at: usize| mixed(stem.wrapping_add(at as u64)) % TOKEN_IDS;
        (0..blocks * BLOCK_TOKENS).map(|at| u32::try_from(token(at)).unwrap_or_default()).collect()
    }

    /// Local hashes of the first `blocks` blocks of a prompt.
    pub fn locals(self, kind: Kind, number: u64, blocks: usize) -> Vec<LocalHash> {
        let tokens = self.tokens(kind, number, blocks);
        let mut locals = Vec::new();
        let seed = Namespace::default().seed();
        local_hashes(&tokens_le(&tokens), BLOCK_TOKENS, seed, &[], &mut locals);
        locals
    }

    /// Events that a worker publishes.
    pub fn events(self, worker: u64) -> Vec<pb::PublishedEvent> {
        let mut events = Vec::new();
        for kind in Kind::ALL {
            for number in 0..self.prompts(kind) {
                if self.holders(kind, number).contains(&worker) {
                    let locals = self.locals(kind, number, kind.blocks());
                    let names: Vec<u64> = sequence_hashes(&locals).map(|name| name.0).collect();
                    let locals: Vec<u64> = locals.iter().map(|local| local.0).collect();
                    events.extend(stored(&names, &locals));
                }
            }
        }
        events
    }
}

/// Registers all workers, and publishes the result of `events` for each.
pub async fn fill(
    indexer: &mut Indexer,
    server: SocketAddr,
    events: impl Fn(u64) -> Vec<pb::PublishedEvent>,
) -> Result<()> {
    let channel = Endpoint::from_shared(format!("http://{server}"))?.connect().await?;
    for worker in 0..WORKERS {
        register(indexer, &worker_id(worker)).await?;
    }
    let fills = (0..WORKERS).map(|worker| {
        let channel = channel.clone();
        let events = &events;
        async move { fill_worker(worker, channel, &events(worker)).await }
    });
    stream::iter(fills).buffer_unordered(FILLED_AT_ONCE).try_collect::<Vec<()>>().await?;
    Ok(())
}

async fn fill_worker(worker: u64, channel: Channel, events: &[pb::PublishedEvent]) -> Result<()> {
    let batches = (0..).zip(events.chunks(BATCH_EVENTS));
    let batches = batches.map(|(sequence, events)| batch(sequence, events.to_vec()));
    let requests: Vec<_> = std::iter::once(hello(worker_id(worker), 0)).chain(batches).collect();
    let operations = requests.iter().map(operations).sum::<u64>();
    let mut acknowledged = 0;
    let mut publisher = ingest_client(channel);
    let mut answers = publisher.publish_events(stream::iter(requests)).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        acknowledged += applied(answer)?;
    }
    ensure!(acknowledged == operations, "{acknowledged} of {operations} blocks were applied");
    Ok(())
}

/// Name of a worker of the fleet.
pub fn worker_id(worker: u64) -> String {
    format!("worker-{worker:02}")
}

/// A client of the ingest service with the server's limits.
pub fn ingest_client(channel: Channel) -> EventIngestClient<Channel> {
    EventIngestClient::new(channel)
        .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX)
}

/// Registers a worker of the fleet's model.
pub async fn register(indexer: &mut Indexer, worker_id: &str) -> Result<()> {
    let request = pb::RegisterWorkerRequest {
        worker_id: worker_id.to_owned(),
        model: MODEL.to_owned(),
        block_size: BLOCK_SIZE,
        ..Default::default()
    };
    indexer.register_worker(request).await.context("register a worker")?;
    Ok(())
}

/// The hello of a publisher's stream.
pub fn hello(worker_id: String, incarnation: u128) -> pb::PublishEventsRequest {
    let hello = pb::PublishHello {
        model: MODEL.to_owned(),
        worker_id,
        source: "load".to_owned(),
        block_size: BLOCK_SIZE,
        incarnation: incarnation.to_be_bytes().to_vec().into(),
        ..Default::default()
    };
    pb::PublishEventsRequest { message: Some(Request::Hello(hello)) }
}

/// A batch of a publisher's stream.
pub const fn batch(sequence: u64, events: Vec<pb::PublishedEvent>) -> pb::PublishEventsRequest {
    let batch = pb::PublishBatch { sequence, dp_rank: 0, events };
    pb::PublishEventsRequest { message: Some(Request::Batch(batch)) }
}

/// The events with which an engine stores a chain of blocks.
pub fn stored(names: &[u64], locals: &[u64]) -> Vec<pb::PublishedEvent> {
    let mut parent_name = None;
    let event = |(names, locals): (&[u64], &[u64])| {
        let stored = pb::BlocksStored {
            parent_name,
            names: names.to_vec(),
            local_hashes: locals.to_vec(),
            ..Default::default()
        };
        parent_name = names.last().copied();
        pb::PublishedEvent { event: Some(pb::published_event::Event::Stored(stored)) }
    };
    names.chunks(EVENT_BLOCKS).zip(locals.chunks(EVENT_BLOCKS)).map(event).collect()
}

fn operations(request: &pb::PublishEventsRequest) -> u64 {
    let Some(Request::Batch(batch)) = &request.message else { return 0 };
    let blocks = batch.events.iter().map(|event| match &event.event {
        Some(pb::published_event::Event::Stored(stored)) => stored.names.len() as u64,
        Some(pb::published_event::Event::Removed(removed)) => removed.names.len() as u64,
        Some(pb::published_event::Event::Cleared(_)) | None => 0,
    });
    blocks.sum()
}

/// Number of applied blocks in an answer to a publisher.
pub fn applied(answer: pb::PublishEventsResponse) -> Result<u64> {
    match answer.message {
        Some(Response::Accepted(_)) => Ok(0),
        Some(Response::Ack(ack)) => Ok(ack.applied),
        Some(Response::Refusal(refusal)) => bail!("a batch was refused: {}", refusal.message),
        None => bail!("an answer to a publisher is empty"),
    }
}
