//! An index, a broker and two agents, each of which is killed now and then.

use crate::place::{DISK_BLOCKS, HOST_BLOCKS, launch, tier_flags};
use crate::rank::{Form, Rank};
use anyhow::{Context, Result};
use kvasir_sim::place::free_port;
use kvasir_sim::server::{Addresses, Server};
use kvasir_tests::nats::NatsServer;
use std::net::SocketAddr;
use std::path::PathBuf;
use tempfile::TempDir;

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    Prefill,
    Decode,
    Index,
    Broker,
}

impl Victim {
    pub const ALL: [Self; 4] = [Self::Prefill, Self::Decode, Self::Index, Self::Broker];
}

/// How events reach the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    Grpc,
    JetStream,
}

/// A program that starts again where it was.
struct Program {
    server: Server,
    flags: Vec<String>,
}

pub struct Fleet {
    folder: TempDir,
    index: Program,
    prefill: Program,
    decode: Program,
    broker: NatsServer,
}

/// What engines know of the fleet.
#[derive(Debug, Clone)]
pub struct Doors {
    pub index: SocketAddr,
    pub prefill: PathBuf,
    pub decode: PathBuf,
}

/// Who saves blocks.
pub const PREFILL: Rank = Rank::of("prefill", 0, 1);
/// Who fetches them: half of the heads, in another layout, with padding.
pub const DECODE: Rank = Rank { form: Form::Layers, alignment: 1_024, ..Rank::of("decode", 1, 2) };
/// Distinct blocks are ten times as many as fit into the tiers of an agent.
pub const BLOCKS: usize = 10 * (HOST_BLOCKS + DISK_BLOCKS);

impl Fleet {
    /// With these flags for both agents, and more keys of their peers.
    pub async fn start(plane: Plane, both: &[&str], more: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let broker = NatsServer::start(folder.path()).await?;
        let path = |name: &str| folder.path().join(name).display().to_string();
        let url = broker.url();
        let checkpoints = path("checkpoints");
        let mut flags = vec!["--checkpoint-dir", &checkpoints, "--checkpoint-interval", "1s"];
        if plane == Plane::JetStream {
            flags.extend(["--nats-url", &url, "--nats-delivery", "jetstream"]);
        }
        let flags = owned(&flags);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let any = Addresses { grpc: any, http: any };
        let index = Program { server: start_index(any, &flags).await?, flags };
        let indexer = format!("http://{}", index.server.addresses.grpc);
        let agent = async |rank: Rank| {
            let peer = format!("listen=127.0.0.1:{}{more}", free_port()?);
            let own = folder.path().join(rank.worker());
            let mut all = tier_flags(&own, DISK_BLOCKS);
            all.extend(rank.flags());
            all.extend(owned(&["--blocks-peer", &peer]));
            all.extend(owned(&["--nats-url", &url, "--storage-events"]));
            all.extend(match plane {
                Plane::Grpc => owned(&["--indexers", &indexer]),
                Plane::JetStream => owned(&["--nats-delivery", "jetstream"]),
            });
            all.extend(owned(both));
            std::fs::create_dir(own)?;
            anyhow::Ok(Program { server: launch(any, &all).await?, flags: all })
        };
        let prefill = agent(PREFILL).await?;
        let decode = agent(DECODE).await?;
        Ok(Self { index, prefill, decode, broker, folder })
    }

    pub fn doors(&self) -> Doors {
        let socket = |rank: Rank| self.folder.path().join(rank.worker()).join("socket");
        Doors {
            index: self.index.server.addresses.grpc,
            prefill: socket(PREFILL),
            decode: socket(DECODE),
        }
    }

    /// Kills one of them (SIGKILL), and starts it again.
    pub async fn kill(&mut self, victim: Victim) -> Result<()> {
        match victim {
            Victim::Prefill => restart_agent(&mut self.prefill).await,
            Victim::Decode => restart_agent(&mut self.decode).await,
            Victim::Index => {
                self.index.server.kill().await;
                let addresses = self.index.server.addresses;
                self.index.server = start_index(addresses, &self.index.flags).await?;
                Ok(())
            }
            Victim::Broker => self.broker.restart().await,
        }
        .with_context(|| format!("{victim:?}"))
    }

    /// What the programs wrote last.
    pub fn output(&self) -> String {
        let programs = [&self.index, &self.prefill, &self.decode];
        programs.map(|program| program.server.output()).join("\n--\n")
    }

    pub async fn stop(mut self) {
        for program in [&mut self.prefill, &mut self.decode, &mut self.index] {
            program.server.stop().await;
        }
    }
}

async fn start_index(addresses: Addresses, flags: &[String]) -> Result<Server> {
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    Server::start_with(addresses.grpc, addresses.http, &flags).await
}

async fn restart_agent(agent: &mut Program) -> Result<()> {
    agent.server.kill().await;
    agent.server = launch(agent.server.addresses, &agent.flags).await?;
    Ok(())
}

fn owned(flags: &[&str]) -> Vec<String> {
    flags.iter().map(|flag| (*flag).to_owned()).collect()
}
