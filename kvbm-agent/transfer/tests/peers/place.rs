//! Managers in memory, an owner on a port, and the fetching side.

use kvasir_blocks::manager::TierConfig;
use kvasir_blocks::sets::{BlockSetLimits, BlockSetRegistry, ContentId};
use kvasir_blocks::{
    BlockIdentity, BlockTier, KvBlockManagerConfig, LayoutConfig, LayoutForm, Priority,
};
use kvasir_memory::{
    Arena, Backing, Region, SharedStorage, SlotLayout, StorageAllocator, SystemAllocator,
};
use kvasir_process::access::Guard;
use kvasir_proto::types::{LocalHash, SequenceHash, WorkerId};
use kvasir_tiers::HostStorage;
use kvasir_tiers::manager::{
    Commit, HostTier, KvBlockManager, ManagerConfig, Session, TierStorages,
};
use kvasir_tls::Dialer;
use kvasir_transfer::serve::OwnerConfig;
use kvasir_transfer::{
    BlockDescription, ClientConfig, FetchRequest, Fetched, FetchedParts, NixlBackend, NixlOptions,
    Owner, PartsRequest, TcpBackend, TransferBackend, TransferCounters,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Longer than any operation of these tests takes.
pub const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    Private,
    Shared,
}

/// Blocks of a prompt with this number.
pub fn prompt(number: u64, blocks: u64) -> Vec<BlockIdentity> {
    let locals: Vec<_> = (0..blocks).map(|at| LocalHash((number << 32) + at + 1)).collect();
    BlockIdentity::chain(&locals).collect()
}

pub fn names(prompt: &[BlockIdentity]) -> Vec<SequenceHash> {
    prompt.iter().map(|block| block.sequence).collect()
}

/// The bytes of a block, derived from its hash.
pub fn bytes_of(block: &BlockIdentity, bytes: usize) -> Vec<u8> {
    let mut state = block.sequence.0 | 1;
    let next = || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 33) as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

pub fn description(block_bytes: usize) -> BlockDescription {
    BlockDescription {
        model: "m".to_owned(),
        tenant: "t".to_owned(),
        hash_scheme: "s".to_owned(),
        block_size: 1,
        block_bytes: block_bytes as u64,
        dtype: "float16".to_owned(),
        ..Default::default()
    }
}

pub fn manager(memory: Memory, block_bytes: usize, slots: u32) -> Arc<KvBlockManager> {
    let config = LayoutConfig {
        num_blocks: 1,
        num_layers: 1,
        outer_dim: 1,
        page_size: 1,
        inner_dim: block_bytes as u32,
        dtype_width_bytes: 1,
        alignment_bytes: 1,
        base_offset_bytes: 0,
    };
    manager_of(memory, LayoutForm::FullyContiguous, config, slots)
}

pub fn manager_of(
    memory: Memory,
    form: LayoutForm,
    config: LayoutConfig,
    slots: u32,
) -> Arc<KvBlockManager> {
    let mut blocks = KvBlockManagerConfig::new(config);
    blocks.form = form;
    blocks.tiers.insert(BlockTier::Host, TierConfig::new(slots));
    let block_bytes = blocks.block().expect("a block").bytes() as usize;
    let layout = SlotLayout::aligned(block_bytes, 4_096, slots).expect("a layout");
    let region: Box<dyn Region> = match memory {
        Memory::Private => {
            SystemAllocator.allocate(layout.bytes().expect("bytes"), 4_096).expect("memory")
        }
        Memory::Shared => {
            Box::new(SharedStorage::create(&Backing::Memfd, layout).expect("shared memory"))
        }
    };
    let arena = Arena::new(region, layout).expect("an arena");
    let storage = Arc::new(HostStorage::new(Arc::clone(&arena)));
    let storages =
        TierStorages { host: Some(HostTier { arena, storage }), ..TierStorages::default() };
    let manager = KvBlockManager::start(ManagerConfig::new(blocks), &storages);
    Arc::new(manager.expect("a manager"))
}

/// Saves blocks, and releases them.
pub fn save(manager: &KvBlockManager, prompt: &[BlockIdentity]) {
    save_bytes(manager, prompt, |block| bytes_of(block, manager.block_bytes()));
}

/// Like [`save`], with other bytes.
pub fn save_bytes(
    manager: &KvBlockManager,
    prompt: &[BlockIdentity],
    bytes: impl Fn(&BlockIdentity) -> Vec<u8>,
) {
    let session = manager.open_session("saves").expect("a session");
    for block in prompt {
        let slot = session.allocate(1, PATIENCE).expect("a slot")[0].slot;
        session.write(slot, 0, &bytes(block)).expect("room");
        let commit = Commit { identity: *block, checksum: None, priority: Priority::default() };
        let committed = session.commit(slot, &commit).expect("a block");
        assert!(session.release(committed.block.slot));
    }
    session.end();
}

/// Number of a prompt's leading blocks that are present with the right bytes.
pub fn verified(manager: &KvBlockManager, prompt: &[BlockIdentity]) -> usize {
    verified_bytes(manager, prompt, |block| bytes_of(block, manager.block_bytes()))
}

/// Like [`verified`], with other bytes.
pub fn verified_bytes(
    manager: &KvBlockManager,
    prompt: &[BlockIdentity],
    expected_bytes: impl Fn(&BlockIdentity) -> Vec<u8>,
) -> usize {
    let session = manager.open_session("looks").expect("a session");
    let held = session.hold_prefix(&names(prompt)).expect("a session");
    for (block, expected) in held.iter().zip(prompt) {
        assert_eq!(block.identity, *expected);
        let bytes = session.read(block.slot).expect("its bytes");
        assert!(bytes == expected_bytes(expected), "wrong bytes");
    }
    session.end();
    held.len()
}

/// Number of free slots, and of blocks in use.
pub fn free_and_active(manager: &KvBlockManager) -> (u64, u64) {
    let pools = manager.metrics().blocks.pools;
    let pool = pools.get(&BlockTier::Host).expect("a pool");
    (pool.free, pool.active)
}

/// An owner on a port.
pub struct Serving {
    pub address: SocketAddr,
    pub counters: Arc<TransferCounters>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Serving {
    pub async fn start(manager: &KvBlockManager, untaken: Duration, guard: Guard) -> Self {
        let blocks = description(manager.block_bytes());
        Self::described(manager, blocks, (untaken, guard), None).await
    }

    /// Like `start`, with a description of its blocks. With options, it lends them by NIXL.
    pub async fn described(
        manager: &KvBlockManager,
        blocks: BlockDescription,
        (untaken, guard): (Duration, Guard),
        nixl: Option<&NixlOptions>,
    ) -> Self {
        let counters: Arc<TransferCounters> = Arc::default();
        let registry = BlockSetRegistry::new(1, BlockSetLimits::DEFAULT);
        let worker = WorkerId::new("owner").expect("a name");
        let config = OwnerConfig { untaken, ..OwnerConfig::new(worker, blocks, ContentId(1)) };
        let ours = Arc::clone(&counters);
        let owner = match nixl {
            None => Owner::new(config, manager, registry, ours),
            Some(nixl) => Owner::with_nixl(config, manager, registry, ours, nixl),
        };
        let owner = owner.expect("an owner");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::new(owner).serve(listener, guard, stop.clone()));
        Self { address, counters, stop, tasks }
    }

    /// Returns once all its tasks have ended.
    pub async fn stop(mut self) {
        self.stop.cancel();
        self.tasks.join_next().await.expect("a task").expect("no panic");
    }
}

/// The fetching side.
pub struct Fetching {
    pub manager: Arc<KvBlockManager>,
    pub session: Session,
    pub backend: Box<dyn TransferBackend>,
    pub counters: Arc<TransferCounters>,
    pub registry: BlockSetRegistry,
}

impl Fetching {
    pub fn new(manager: Arc<KvBlockManager>) -> Self {
        let blocks = description(manager.block_bytes());
        Self::described(manager, blocks)
    }

    pub fn described(manager: Arc<KvBlockManager>, blocks: BlockDescription) -> Self {
        Self::over(manager, blocks, None)
    }

    /// With the backend over TCP or NIXL.
    pub fn over(
        manager: Arc<KvBlockManager>,
        blocks: BlockDescription,
        nixl: Option<&NixlOptions>,
    ) -> Self {
        let counters: Arc<TransferCounters> = Arc::default();
        let registry = BlockSetRegistry::new(1, BlockSetLimits::DEFAULT);
        let worker = WorkerId::new("fetches").expect("a name");
        let config = ClientConfig { worker, blocks, dialer: Dialer::default() };
        let imports = registry.clone();
        let ours = Arc::clone(&counters);
        let backend: Box<dyn TransferBackend> = match nixl {
            None => Box::new(TcpBackend::new(config, imports, ours)),
            Some(nixl) => {
                let backend = NixlBackend::new(config, imports, ours, manager.arena(), nixl);
                Box::new(backend.expect("NIXL"))
            }
        };
        let session = manager.open_session("fetches").expect("a session");
        Self { manager, session, backend, counters, registry }
    }

    pub async fn fetch(&self, peer: SocketAddr, wanted: &[BlockIdentity]) -> Fetched {
        self.fetch_within(peer, wanted, PATIENCE).await
    }

    pub async fn fetch_within(
        &self,
        peer: SocketAddr,
        wanted: &[BlockIdentity],
        within: Duration,
    ) -> Fetched {
        let (peer, wanted) = (format!("http://{peer}"), names(wanted));
        let deadline = Instant::now() + within;
        let into = &self.session;
        let request = FetchRequest { peer: &peer, wanted: &wanted, into, deadline };
        self.backend.fetch(request).await
    }

    pub async fn fetch_parts(
        &self,
        peers: &[SocketAddr],
        wanted: &[BlockIdentity],
    ) -> FetchedParts {
        self.fetch_parts_within(peers, wanted, PATIENCE).await
    }

    pub async fn fetch_parts_within(
        &self,
        peers: &[SocketAddr],
        wanted: &[BlockIdentity],
        within: Duration,
    ) -> FetchedParts {
        let peers: Vec<_> = peers.iter().map(|peer| format!("http://{peer}")).collect();
        let wanted = names(wanted);
        let deadline = Instant::now() + within;
        let into = &self.session;
        let request = PartsRequest { peers: &peers, wanted: &wanted, into, deadline };
        self.backend.fetch_parts(request).await
    }
}
