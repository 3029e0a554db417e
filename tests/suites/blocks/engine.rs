//! An engine that saves blocks, and gets them back. What a block's bytes are follows from its hash, so that every reader
//! knows what is right.

use crate::place::{BLOCK_BYTES, MODEL, PATIENCE};
use anyhow::{Context, Result, ensure};
use hyper_util::rt::TokioIo;
use kvasir_proto::hash::sequence_hash;
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
use kvasir_proto::pb;
use kvasir_proto::pb::block_manager_client::BlockManagerClient;
use kvasir_proto::types::LocalHash;
use kvasir_tls::{Channel, Dialer};
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Endpoint;
use tonic::{Status, Streaming};
use tower::service_fn;

pub type Client = BlockManagerClient<Channel>;

/// Over a connection that is opened, and replaced when it is old, as calls need one.
pub fn over_tcp(address: SocketAddr) -> Result<Client> {
    Ok(sized(Dialer::default().lazy(&address.to_string())?))
}

pub async fn over_socket(path: &Path) -> Result<Client> {
    let path = path.to_owned();
    let connect = service_fn(move |_uri| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    let channel = Endpoint::from_static("http://socket").connect_with_connector(connect).await?;
    Ok(sized(channel.into()))
}

fn sized(channel: Channel) -> Client {
    Client::new(channel)
        .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX)
}

/// The blocks of a prompt, whose local hashes are these.
pub fn identities(locals: &[u64]) -> Vec<pb::BlockIdentity> {
    let mut parent = None;
    let identities = locals.iter().enumerate().map(|(position, &local_hash)| {
        let sequence = sequence_hash(parent, LocalHash(local_hash));
        let before = parent.replace(sequence).map(|before| before.0);
        let position = position as u32;
        pb::BlockIdentity { sequence_hash: sequence.0, parent: before, local_hash, position }
    });
    identities.collect()
}

pub fn hashes(locals: &[u64]) -> Vec<u64> {
    identities(locals).iter().map(|at| at.sequence_hash).collect()
}

/// Local hashes of a prompt that has none in common with those of other numbers.
pub fn prompt(number: u64, blocks: u64) -> Vec<u64> {
    (0..blocks).map(|at| (number << 16) + at + 1).collect()
}

/// The bytes of a block.
pub fn bytes_of(sequence_hash: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    ChaCha8Rng::seed_from_u64(sequence_hash).fill_bytes(&mut bytes);
    bytes
}

/// What a block's bytes are, by its sequence hash.
pub type Contents = Arc<dyn Fn(u64) -> Vec<u8> + Send + Sync>;

pub struct Engine {
    pub client: Client,
    contents: Contents,
    pub opened: pb::SessionOpened,
    /// Its end is the engine's.
    pub stream: Streaming<pb::OpenSessionResponse>,
    /// The mapped memory, through its file.
    arena: Option<File>,
}

impl Engine {
    pub async fn open(client: Client) -> Result<Self> {
        Self::with(client, Arc::new(bytes_of)).await
    }

    /// One whose blocks have other bytes.
    pub async fn with(mut client: Client, contents: Contents) -> Result<Self> {
        let request = pb::OpenSessionRequest {
            model: MODEL.to_owned(),
            name: "test".to_owned(),
            block_bytes: Some(contents(0).len() as u64),
            dtype: Some("float16".to_owned()),
            ..Default::default()
        };
        let mut stream = client.open_session(request).await?.into_inner();
        let opened = stream.message().await?.context("an end")?.opened.context("nothing")?;
        let open = |arena: &pb::BlockArena| {
            OpenOptions::new().read(true).write(true).open(&arena.path).context("the arena")
        };
        let arena = opened.arena.as_ref().map(open).transpose()?;
        Ok(Self { client, contents, opened, stream, arena })
    }

    pub fn session(&self) -> prost::bytes::Bytes {
        self.opened.session_id.clone()
    }

    fn offset(&self, slot: u32) -> u64 {
        let arena = self.opened.arena.as_ref().expect("shared memory");
        arena.start_bytes + u64::from(slot) * arena.stride_bytes
    }

    pub async fn allocate(&mut self, count: u32) -> Result<Vec<u32>, Status> {
        let request = pb::AllocateRequest { session_id: self.session(), count, lease_ms: 30_000 };
        Ok(self.client.allocate(request).await?.into_inner().slots)
    }

    /// Fills a slot: through the arena if it is mapped, else over gRPC in two parts.
    async fn fill(&mut self, slot: u32, bytes: &[u8]) -> Result<()> {
        if let Some(arena) = &self.arena {
            arena.write_all_at(bytes, self.offset(slot))?;
            return Ok(());
        }
        let half = bytes.len() / 2;
        for (offset, part) in [(0, &bytes[..half]), (half, &bytes[half..])] {
            let request = pb::WriteRequest {
                session_id: self.session(),
                slot,
                offset_bytes: offset as u64,
                data: part.to_vec().into(),
            };
            self.client.write(request).await?;
        }
        Ok(())
    }

    /// Slots with the blocks of a prompt, to be committed.
    pub async fn filled(&mut self, locals: &[u64]) -> Result<pb::CommitRequest> {
        let slots = self.allocate(locals.len() as u32).await?;
        let mut blocks = Vec::new();
        for (identity, slot) in identities(locals).into_iter().zip(slots) {
            self.fill(slot, &(self.contents)(identity.sequence_hash)).await?;
            let identity = Some(identity);
            blocks.push(pb::CommitBlock { slot, identity, ..Default::default() });
        }
        Ok(pb::CommitRequest { session_id: self.session(), blocks })
    }

    /// Saves the blocks of a prompt, which the session holds from then on.
    pub async fn save_held(&mut self, locals: &[u64]) -> Result<Vec<pb::HeldBlock>> {
        let request = self.filled(locals).await?;
        let committed = self.client.commit(request).await?.into_inner().blocks;
        let held = committed.into_iter().map(|block| block.block.context(block.error));
        held.collect()
    }

    /// Saves them and lets go of them.
    pub async fn save(&mut self, locals: &[u64]) -> Result<()> {
        let held = self.save_held(locals).await?;
        self.release(&held).await
    }

    pub async fn release(&mut self, held: &[pb::HeldBlock]) -> Result<()> {
        let slots: Vec<_> = held.iter().map(|block| block.slot).collect();
        let count = slots.len();
        if count > 0 {
            let request = pb::ReleaseRequest { session_id: self.session(), slots };
            let released = self.client.release(request).await?.into_inner().released;
            ensure!(released as usize == count, "{released} of {count} were held");
        }
        Ok(())
    }

    pub async fn onboard(&mut self, locals: &[u64]) -> Result<pb::OnboardResponse, Status> {
        let request = pb::OnboardRequest {
            session_id: self.session(),
            sequence_hashes: hashes(locals),
            ..Default::default()
        };
        Ok(self.client.onboard(request).await?.into_inner())
    }

    /// Gets the leading blocks of a prompt, and checks every byte of them. Returns how many there were.
    pub async fn load(&mut self, locals: &[u64]) -> Result<usize> {
        let onboarded = self.onboard(locals).await?;
        let held = onboarded.blocks;
        let wanted = hashes(locals);
        for (block, sequence) in held.iter().zip(&wanted) {
            let identity = block.identity.as_ref().context("an identity")?;
            ensure!(identity.sequence_hash == *sequence, "another block");
            let expected = (self.contents)(*sequence);
            ensure!(self.read(block.slot).await? == expected, "wrong bytes of {sequence:016x}");
            if self.arena.is_some() {
                ensure!(self.mapped(block).await? == expected, "wrong bytes of {sequence:016x}");
            }
        }
        self.release(&held).await?;
        Ok(held.len())
    }

    /// A held block over gRPC.
    pub async fn read(&mut self, slot: u32) -> Result<Vec<u8>> {
        let request = pb::ReadRequest { session_id: self.session(), slots: vec![slot] };
        let mut parts = self.client.read(request).await?.into_inner();
        let mut bytes = Vec::new();
        while let Some(part) = parts.message().await? {
            ensure!(part.fault == 0, "slot {slot}: fault {}", part.fault);
            ensure!(part.offset_bytes == bytes.len() as u64, "a part is missing");
            bytes.extend_from_slice(&part.data);
        }
        Ok(bytes)
    }

    /// A held block in the mapped memory, verified.
    async fn mapped(&mut self, block: &pb::HeldBlock) -> Result<Vec<u8>> {
        let request = pb::VerifyRequest { session_id: self.session(), slots: vec![block.slot] };
        let verified = self.client.verify(request).await?.into_inner().blocks;
        let verified = verified.first().context("an answer")?;
        ensure!((verified.fault, verified.checksum) == (0, block.checksum), "{verified:?}");
        let mut bytes = vec![0; self.opened.block_bytes as usize];
        let arena = self.arena.as_ref().context("shared memory")?;
        arena.read_exact_at(&mut bytes, self.offset(block.slot))?;
        Ok(bytes)
    }

    pub async fn stats(&mut self) -> Result<pb::GetBlockStatsResponse, Status> {
        Ok(self.client.get_stats(pb::GetBlockStatsRequest {}).await?.into_inner())
    }

    /// Waits until the stats satisfy a condition.
    pub async fn until(
        &mut self,
        what: &str,
        condition: impl Fn(&pb::GetBlockStatsResponse) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let stats = self.stats().await?;
            if condition(&stats) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "not {what}: {stats:?}");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until nothing is to be copied.
    pub async fn until_copied(&mut self) -> Result<()> {
        let is_idle = |stats: &pb::GetBlockStatsResponse| {
            stats.lanes.iter().all(|lane| lane.queued + lane.in_flight == 0)
        };
        self.until("idle", is_idle).await
    }

    /// The tiers that have a block: of host and disk.
    pub async fn tiers(&mut self, sequence: u64) -> Result<Vec<pb::BlockTier>> {
        let request =
            pb::MatchPrefixRequest { sequence_hashes: vec![sequence], ..Default::default() };
        let found = self.client.match_prefix(request).await?.into_inner();
        let has = found.tiers.iter().filter(|at| at.leading_blocks > 0);
        Ok(has.map(pb::TierPrefix::tier).collect())
    }

    /// Ends the session; its stream ends with it.
    pub async fn end(mut self) -> Result<()> {
        let request = pb::EndSessionRequest { session_id: self.session() };
        self.client.end_session(request).await?;
        let end = timeout(PATIENCE, self.stream.message()).await.context("it goes on")?;
        ensure!(end?.is_none(), "another message");
        Ok(())
    }
}
