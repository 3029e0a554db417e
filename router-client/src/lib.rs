//! Asks an indexer which worker holds how much of a prompt.
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
//!     // … send it there, then say so: events take a while, and some engines publish none.
//!     client.record_placement(&Prompt::new("my-model", 16, &tokens), &best.worker, None).await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Where the index is in several servers, [`ShardedClient`] asks all shards at once, each at its freshest
//! replica, and at another when that one is slow or down; shards that do not answer are named in
//! [`Answer::missing_shards`].
//!
//! Tokens are hashed here and never leave the process. Questions travel in one pipelined stream, which
//! costs a fraction of a call each ([`Calls`]). The client bounds what it has in flight and
//! how long it waits, because a server that sheds load moves the queue to its callers.

mod client;
mod config;
mod error;
mod merge;
mod overlap;
mod prompt;
mod replicas;
mod sharded;
mod stream;

pub use client::IndexerClient;
pub use config::{Calls, ClientConfig};
pub use error::ClientError;
pub use overlap::{Answer, Overlap};
pub use prompt::Prompt;
pub use replicas::{HedgeConfig, REPLICAS_MAX, ShardCounts};
pub use sharded::{ShardedClient, ShardedConfig};
