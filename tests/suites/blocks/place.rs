//! An index and an agent with a block manager, in a folder of their own.

use anyhow::{Context, Result};
use kvasir_proto::pb;
use kvasir_sim::client;
use kvasir_sim::demo::metrics;
use kvasir_sim::server::{Addresses, Server};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

pub const MODEL: &str = "m";
pub const WORKER: &str = "w";
pub const BLOCK_SIZE: u32 = 4;
pub const BLOCK_BYTES: usize = 4_096;
pub const HOST_BLOCKS: usize = 16;
pub const DISK_BLOCKS: usize = 128;
/// Nothing in these tests takes nearly as long.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How often something is looked at.
pub const LOOK: Duration = Duration::from_millis(20);

/// Where a block is: its local hashes from the root, and its tier as the index numbers them.
pub type Chain = (u32, Vec<u64>, usize);

pub struct Place {
    pub folder: TempDir,
    pub index: Server,
    pub agent: Server,
    flags: Vec<String>,
}

impl Place {
    pub async fn start(flags: &[&str]) -> Result<Self> {
        Self::with_disk(DISK_BLOCKS, flags).await
    }

    /// With a disk of so many blocks.
    pub async fn with_disk(blocks: usize, flags: &[&str]) -> Result<Self> {
        Self::in_folder(tempfile::tempdir()?, blocks, flags).await
    }

    /// With a disk of so many blocks, which lies in this folder or will lie there.
    pub async fn in_folder(folder: TempDir, blocks: usize, flags: &[&str]) -> Result<Self> {
        let index = Server::start_anywhere().await?;
        let mut all = flags_of(folder.path(), WORKER, blocks);
        all.extend(to_index(&index));
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let agent = launch(Addresses { grpc: any, http: any }, &all).await?;
        Ok(Self { folder, index, agent, flags: all })
    }

    /// Kills the agent and starts another one in its place.
    pub async fn restart(&mut self) -> Result<()> {
        self.agent.kill().await;
        self.begin_again().await
    }

    /// Starts an agent in the place of one that has ended.
    pub async fn begin_again(&mut self) -> Result<()> {
        self.agent = launch(self.agent.addresses, &self.flags).await?;
        Ok(())
    }

    /// Starts an agent in the same folder, with further flags; what ends it is its error.
    pub async fn second(&self, flags: &[&str]) -> Result<Server> {
        let mut all = self.flags.clone();
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        launch(Addresses { grpc: any, http: any }, &all).await
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// What the index holds for the worker: nothing if it does not know it.
    pub async fn indexed(&self) -> Result<BTreeSet<Chain>> {
        let mut index = client::connect(self.index.addresses.grpc).await?;
        client::dump_chains(&mut index, MODEL, WORKER).await
    }

    /// Waits until the index holds exactly this.
    pub async fn until_indexed(&self, expected: &BTreeSet<Chain>) -> Result<()> {
        let equal = async {
            // A dump is cut off where the worker is cleared meanwhile.
            while self.indexed().await.ok().as_ref() != Some(expected) {
                sleep(LOOK).await;
            }
        };
        if timeout(PATIENCE, equal).await.is_err() {
            let found = self.indexed().await?;
            let (lacks, extra): (Vec<_>, Vec<_>) =
                (expected.difference(&found).collect(), found.difference(expected).collect());
            anyhow::bail!(
                "the index lacks {lacks:?} and has {extra:?} beside: {}",
                self.agent.output()
            );
        }
        Ok(())
    }

    /// The best worker of a prompt: blocks by tier; none if nobody has any.
    pub async fn find(&self, locals: &[u64]) -> Result<Option<pb::BlocksByTier>> {
        let mut index = client::connect(self.index.addresses.grpc).await?;
        let request = pb::FindMatchesRequest {
            model: MODEL.to_owned(),
            local_hashes: locals.to_vec(),
            ..Default::default()
        };
        let answer = match index.find_matches(request).await {
            Ok(answer) => answer.into_inner(),
            Err(status) if status.code() == tonic::Code::NotFound => return Ok(None),
            Err(status) => return Err(status.into()),
        };
        Ok(answer.matches.into_iter().next().and_then(|best| best.blocks_by_tier))
    }

    /// Waits until a query finds so many blocks in host memory and on disk, and none on the device.
    pub async fn until_found(&self, locals: &[u64], host: u32, disk: u32) -> Result<()> {
        self.until_in(locals, pb::BlocksByTier { device: 0, host, disk }).await
    }

    /// Waits until a query finds so many blocks in each tier.
    pub async fn until_in(&self, locals: &[u64], expected: pb::BlocksByTier) -> Result<()> {
        let found = async {
            while self.find(locals).await?.unwrap_or_default() != expected {
                sleep(LOOK).await;
            }
            anyhow::Ok(())
        };
        timeout(PATIENCE, found).await.with_context(|| format!("never {expected:?}"))?
    }

    pub async fn metric(&self, name: &str, label: &str) -> Result<f64> {
        let samples = metrics::fetch(self.agent.addresses.http).await?;
        let found = samples.iter().find(|at| at.name == name && at.labels.contains(label));
        Ok(found.with_context(|| format!("{name} {label} is not shown"))?.value)
    }

    pub async fn stop(mut self) {
        self.agent.stop().await;
        self.index.stop().await;
    }
}

/// An agent of another worker, in a folder of its own.
pub struct Neighbour {
    pub folder: TempDir,
    pub agent: Server,
}

impl Neighbour {
    /// Beside the agent of a place, with the same index.
    pub async fn start(place: &Place, worker: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut flags = flags_of(folder.path(), worker, DISK_BLOCKS);
        flags.extend(to_index(&place.index));
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let agent = launch(Addresses { grpc: any, http: any }, &flags).await?;
        Ok(Self { folder, agent })
    }
}

pub fn to_index(index: &Server) -> [String; 2] {
    ["--indexers".to_owned(), format!("http://{}", index.addresses.grpc)]
}

/// Flags of an agent whose files lie in a folder, and which is to be told where the index is.
pub fn flags_of(folder: &Path, worker: &str, disk_blocks: usize) -> Vec<String> {
    let mut flags = tier_flags(folder, disk_blocks);
    let block_bytes = BLOCK_BYTES.to_string();
    let geometry = format!("bytes={block_bytes},dtype=float16");
    let own = [["--worker-id", worker], ["--blocks-geometry", &geometry]];
    flags.extend(own.concat().into_iter().map(str::to_owned));
    flags
}

/// The same without what it is called, and what its blocks are: they have [`BLOCK_BYTES`] at most.
pub fn tier_flags(folder: &Path, disk_blocks: usize) -> Vec<String> {
    let path = |name: &str| folder.join(name).display().to_string();
    [
        ["--model", MODEL],
        ["--block-size", &BLOCK_SIZE.to_string()],
        ["--lease", "6s"],
        ["--blocks-host", &format!("bytes={}", HOST_BLOCKS * BLOCK_BYTES)],
        ["--blocks-disk", &format!("file={},bytes={}", path("disk"), disk_blocks * BLOCK_BYTES)],
        ["--blocks-socket", &path("socket")],
    ]
    .concat()
    .into_iter()
    .map(str::to_owned)
    .collect()
}

pub async fn launch(addresses: Addresses, flags: &[String]) -> Result<Server> {
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    Server::agent_at(addresses, &flags).await
}
