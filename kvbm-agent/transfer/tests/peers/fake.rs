//! An owner that speaks the protocol, and misbehaves as a test specifies.

use crate::place::{bytes_of, description};
use crate::ranks::Rank;
use kvasir_blocks::BlockIdentity;
use kvasir_blocks::LayoutConfig;
use kvasir_blocks::layout::LayoutForm;
use kvasir_blocks::sets::{
    AddressRange, BlockSetDescription, BlockSetId, BlockSetLayout, ContentId, Fence, MemoryKind,
    SetMemory, TensorParallel,
};
use kvasir_tiers::Checksum;
use kvasir_transfer::BlockDescription;
use kvasir_transfer::convert::PartPlan;
use kvasir_transfer::limits::VERSION;
use kvasir_transfer::wire::{BlockHead, End, Fault, Fetch, FrameReader, Message, Welcome};
use std::net::SocketAddr;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

/// The fake owner's port.
pub struct Fake {
    listener: TcpListener,
    block_bytes: usize,
    /// The description that the owner sends.
    pub blocks: BlockDescription,
    /// The number of blocks that the owner states for its set.
    pub num_blocks: u32,
}

/// One connection to the fake owner.
pub struct Caller {
    reader: FrameReader<TcpStream>,
    block_bytes: usize,
    /// The part sent of each block; `None` for complete blocks.
    plan: Option<PartPlan>,
}

impl Fake {
    pub async fn new(block_bytes: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        Self { listener, block_bytes, blocks: description(block_bytes), num_blocks: 4 }
    }

    /// A fake owner with the blocks of a rank.
    pub async fn of(rank: &Rank) -> Self {
        Self { blocks: rank.description(), ..Self::new(rank.bytes()).await }
    }

    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("an address")
    }

    /// Accepts the next caller, and sends it the set of this epoch.
    pub async fn accept(&self, epoch: u64) -> Caller {
        let (stream, _) = self.listener.accept().await.expect("a caller");
        let mut reader = FrameReader::new(stream, 0);
        let hello = reader.frame().await.expect("a frame");
        let Some(Message::Hello(hello)) = hello else { panic!("{hello:?}") };
        let plan = match (self.blocks.rank(), hello.blocks.rank()) {
            (Ok(Some(owner)), Ok(Some(receiver))) => PartPlan::new(&owner, &receiver).ok(),
            _ => None,
        };
        if self.blocks == description(self.block_bytes) {
            assert_eq!(hello.blocks, self.blocks);
        }
        let config = LayoutConfig {
            num_blocks: self.num_blocks,
            num_layers: 1,
            outer_dim: 1,
            page_size: 1,
            inner_dim: self.block_bytes as u32,
            dtype_width_bytes: 1,
            alignment_bytes: 1,
            base_offset_bytes: 0,
        };
        let range = AddressRange {
            address: 0,
            bytes: u64::from(self.num_blocks) * self.block_bytes as u64,
        };
        let description = BlockSetDescription {
            id: BlockSetId(0),
            content: ContentId(1),
            tensor_parallel: TensorParallel::SINGLE,
            form: LayoutForm::FullyContiguous,
            config,
            memory: SetMemory { kind: MemoryKind::Dram, device_id: 0, ranges: vec![range] },
        };
        let layout = BlockSetLayout::new(description, Fence { epoch, export: 1 }).expect("a set");
        let welcome = Welcome {
            version: VERSION,
            worker: "fake".to_owned(),
            set: layout.serialize().0,
            blocks: self.blocks.clone(),
            ..Default::default()
        };
        let mut caller = Caller { reader, block_bytes: self.block_bytes, plan };
        caller.send(&Message::Welcome(welcome).frame(0)).await;
        caller
    }
}

impl Caller {
    pub async fn send(&mut self, bytes: &[u8]) {
        // The caller may be gone; the test detects this by its result.
        drop(self.reader.io().write_all(bytes).await);
    }

    pub async fn asked(&mut self) -> Fetch {
        let asked = self.reader.frame().await.expect("a frame");
        let Some(Message::Fetch(fetch)) = asked else { panic!("{asked:?}") };
        fetch
    }

    /// Waits until the caller has closed the connection.
    pub async fn closed(&mut self) {
        while let Ok(Some(_)) = self.reader.frame().await {}
    }

    /// A correct block.
    pub fn right(&self, index: u32, block: &BlockIdentity) -> (BlockHead, Vec<u8>) {
        Self::head(index, block, bytes_of(block, self.block_bytes))
    }

    /// The correct part of a block of this rank that the caller needs.
    pub fn part(&self, index: u32, block: &BlockIdentity, rank: &Rank) -> (BlockHead, Vec<u8>) {
        let plan = self.plan.as_ref().expect("a plan");
        let mut part = Vec::new();
        plan.gather(&rank.bytes_of(block), &mut part);
        Self::head(index, block, part)
    }

    fn head(index: u32, block: &BlockIdentity, bytes: Vec<u8>) -> (BlockHead, Vec<u8>) {
        let head = BlockHead {
            request: 0,
            index,
            sequence: block.sequence.0,
            parent: block.parent.map(|parent| parent.0),
            local: block.local.0,
            position: block.position,
            checksum: Checksum::of(block.sequence.0, &bytes).0,
        };
        (head, bytes)
    }

    pub async fn send_block(&mut self, (head, bytes): (BlockHead, Vec<u8>)) {
        let payload = self.plan.as_ref().map_or(self.block_bytes, PartPlan::bytes);
        let mut frame = Message::Block(head).frame(payload as u64);
        frame.extend(bytes);
        self.send(&frame).await;
    }

    pub async fn end(&mut self, blocks: u32, fault: Fault) {
        let end = End { request: 0, blocks, fault: fault as i32 };
        self.send(&Message::End(end).frame(0)).await;
    }
}
