//! Client of the indexer: finds the workers that cache leading blocks of a prompt.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use router_client::{ClientConfig, IndexerClient, Prompt};
//!
//! let client = IndexerClient::connect("http://127.0.0.1:50051", ClientConfig::default())?;
//! let tokens: Vec<u32> = (0..4096).collect();
//! let answer = client.find(&Prompt::new("my-model", 16, &tokens)).await?;
//! for overlap in &answer.overlaps {
//!     println!("{} holds {} blocks ({})", overlap.worker, overlap.blocks, overlap.state);
//! }
//! if let Some(best) = answer.best() {
//!     // Send the prompt there, then report it: events take a while, and some engines publish none.
//!     client.record_placement(&Prompt::new("my-model", 16, &tokens), &best.worker, None).await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! If the index is split into shards, [`ShardedClient`] queries all shards concurrently. It queries each shard's
//! freshest replica, and another replica if the first is slow or down. [`Answer::missing_shards`] lists the shards that
//! did not answer.
//!
//! The client hashes tokens; they never leave the process. Queries share one pipelined stream, which costs a fraction
//! of a call per query ([`Calls`]). The client limits its queries in flight and its waits, because a server under
//! backpressure moves the queue to its callers.

mod client;
mod config;
mod error;
mod images;
mod merge;
mod overlap;
mod prompt;
mod replicas;
pub mod route;
pub mod router;
mod sharded;
mod stream;
mod workers;

pub use client::IndexerClient;
pub use config::{Calls, ClientConfig};
pub use error::ClientError;
pub use images::{Image, image_tokens, with_images};
pub use kvasir_proto::convert::{ImageTokens, PoolState, ReuseReport};
pub use kvasir_tls::{ClientFiles, DialError, Dialer, Identity, TlsError};
pub use overlap::{Answer, Overlap};
pub use prompt::{HashedPrompt, Prompt};
pub use replicas::{HedgeConfig, REPLICAS_MAX, ShardCounts};
pub use sharded::{ShardedClient, ShardedConfig};
pub use workers::{LISTED_WORKERS_MAX, ListedWorker, WorkerList};
