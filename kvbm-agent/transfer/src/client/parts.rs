use super::connection::Connection;
use super::connections::Connections;
use super::sent::PartStream;
use super::slots::Slots;
use crate::backend::{FetchFault, FetchedParts, PartsRequest};
use crate::convert::{Exchange, PartPlan};
use crate::wire::Shard;
use futures::future::join_all;
use kvasir_blocks::BlockIdentity;
use kvasir_proto::types::SequenceHash;
use kvasir_tiers::manager::Filling;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::time::Instant;

/// Fetches blocks whose parts come from several owners.
pub(super) struct PartsFetch<'a> {
    connections: &'a Connections,
    request: PartsRequest<'a>,
    /// The part of the heads in this agent's blocks.
    own: Shard,
    begin: &'a BeginParts<'a>,
}

/// Starts fetching the parts of blocks over a connection.
pub(super) type BeginParts<'a> = dyn Fn(
        Connection,
        &'a [SequenceHash],
        Arc<PartPlan>,
    ) -> Result<Box<dyn PartStream + 'a>, FetchFault>
    + Send
    + Sync
    + 'a;

/// Owners that split heads in the same way, with one lane for each required part.
struct Group<'a> {
    count: u32,
    lanes: Vec<Lane<'a>>,
}

/// The owners of one part: one is queried, the others are for failover.
struct Lane<'a> {
    shard: Shard,
    candidates: VecDeque<Candidate>,
    source: Option<Source<'a>>,
    /// The block's identity, once its part was received.
    identity: Option<BlockIdentity>,
}

/// An owner that can be queried.
struct Candidate {
    peer: usize,
    connection: Connection,
    is_reused: bool,
}

/// The owner that is being queried.
struct Source<'a> {
    peer: usize,
    parts: Box<dyn PartStream + 'a>,
    part_bytes: usize,
    /// Whether the connection was reused and has not answered yet: the owner may have closed it.
    is_untried: bool,
}

impl<'a> PartsFetch<'a> {
    pub(super) const fn new(
        connections: &'a Connections,
        request: PartsRequest<'a>,
        own: Shard,
        begin: &'a BeginParts<'a>,
    ) -> Self {
        Self { connections, request, own, begin }
    }

    /// Fetches parts until all blocks are received, or a fault occurs. Tries the groups of peers one after the other,
    /// until one succeeds or this agent has caused the fault.
    pub(super) async fn run(&self, fetched: &mut FetchedParts) -> Result<(), FetchFault> {
        let groups = self.groups(fetched).await;
        let mut ended = Err(Self::unreached(fetched));
        for mut group in groups {
            ended = self.run_group(&mut group, fetched).await;
            self.put_back(group, &ended).await;
            if ended.as_ref().map_or_else(FetchFault::is_ours, |()| true) {
                break;
            }
        }
        ended
    }

    /// The fault to report if no owner could be queried.
    fn unreached(fetched: &FetchedParts) -> FetchFault {
        let mut stopped = fetched.peers.iter().filter_map(|peer| peer.stopped.clone());
        let is_needed = |fault: &FetchFault| !matches!(fault, FetchFault::NotNeeded { .. });
        stopped.find(is_needed).unwrap_or(FetchFault::Missing)
    }

    /// Connects to all peers concurrently, and groups them by their split of heads. Leaves out peers that cannot be
    /// reached, and peers whose part is not needed.
    async fn groups(&self, fetched: &mut FetchedParts) -> Vec<Group<'a>> {
        let opened = self.request.peers.iter().map(|peer| self.connect_peer(peer));
        let mut groups: Vec<Group<'a>> = Vec::new();
        for (peer, opened) in join_all(opened).await.into_iter().enumerate() {
            let (connection, is_reused) = match opened {
                Ok(opened) => opened,
                Err(fault) => {
                    fetched.stop(peer, fault);
                    continue;
                }
            };
            let Shard { number, count } = connection.shard;
            if connection.exchange.is_nothing() {
                fetched.stop(peer, FetchFault::NotNeeded { number, count });
                self.put_idle(peer, connection);
                continue;
            }
            let known = groups.iter().position(|group| group.count == count);
            let at = known.unwrap_or_else(|| {
                groups.push(Group::new(self.own, count));
                groups.len() - 1
            });
            let lanes = groups.get_mut(at).map(|group| group.lanes.iter_mut());
            let lane = lanes.and_then(|mut at| at.find(|lane| lane.shard.number == number));
            if let Some(lane) = lane {
                lane.candidates.push_back(Candidate { peer, connection, is_reused });
            }
        }
        groups
    }

    async fn connect_peer(&self, peer: &str) -> Result<(Connection, bool), FetchFault> {
        match self.connections.take_idle(peer) {
            Some(connection) => Ok((connection, true)),
            None => Ok((self.connections.connect(peer).await?, false)),
        }
    }

    fn put_idle(&self, peer: usize, connection: Connection) {
        if let Some(peer) = self.request.peers.get(peer) {
            self.connections.put_idle(peer, connection);
        }
    }

    /// Returns the reusable connections of a group to the pool.
    async fn put_back(&self, group: Group<'a>, ended: &Result<(), FetchFault>) {
        for lane in group.lanes {
            for Candidate { peer, connection, .. } in lane.candidates {
                self.put_idle(peer, connection);
            }
            let Some(Source { peer, parts, .. }) = lane.source else { continue };
            if let Some(connection) = parts.close(ended).await {
                self.put_idle(peer, connection);
            }
        }
    }

    /// Fetches the blocks one after the other, each in parts from several owners. A block is registered once all its
    /// parts have arrived. Fails if a part has no owner.
    async fn run_group(
        &self,
        group: &mut Group<'a>,
        fetched: &mut FetchedParts,
    ) -> Result<(), FetchFault> {
        let lacks = group.lanes.iter().find(|lane| lane.candidates.is_empty());
        if let Some(Shard { number, count }) = lacks.map(|lane| lane.shard) {
            let fault = FetchFault::NoOwner { number, count };
            let candidates = group.lanes.iter().flat_map(|lane| &lane.candidates);
            candidates.for_each(|at| fetched.stop(at.peer, fault.clone()));
            return Err(fault);
        }
        let mut slots = Slots::new(self.request.into, self.connections.block_bytes());
        let mut piece = Vec::new();
        while let Some(rest @ [_, ..]) = self.request.wanted.get(fetched.blocks.len()..) {
            let mut slot = slots.next(rest.len())?;
            for lane in &mut group.lanes {
                lane.identity = None;
                self.query_next_owner(lane, rest, fetched).await;
            }
            // If an owner's set ends before the block is registered, another owner replaces it.
            while let Some(lane) = group.lacks() {
                self.part(lane, rest, &mut slot, &mut piece, fetched).await?;
            }
            let identity = group.identity()?;
            let filled = slots.commit(slot, identity, None).await?;
            group.lanes.iter().for_each(|lane| lane.count(fetched));
            fetched.first_at.get_or_insert_with(Instant::now);
            fetched.blocks.push(filled);
        }
        Ok(())
    }

    /// Queries the next owner of a part. Returns immediately if an owner is being queried, or no further owner is
    /// known. All owners work concurrently.
    async fn query_next_owner(
        &self,
        lane: &mut Lane<'a>,
        rest: &'a [SequenceHash],
        fetched: &mut FetchedParts,
    ) {
        while lane.source.is_none() {
            let Some(candidate) = lane.candidates.pop_front() else { return };
            let peer = candidate.peer;
            fetched.mark_asked(peer);
            match self.source(candidate, rest) {
                Ok(mut source) => {
                    source.parts.send_requests().await;
                    lane.source = Some(source);
                }
                Err(fenced) => fetched.stop(peer, fenced),
            }
        }
    }

    /// Receives one part of the next block from the first owner that has it. Fails with the last owner's fault.
    async fn part(
        &self,
        lane: &mut Lane<'a>,
        rest: &'a [SequenceHash],
        slot: &mut Filling,
        piece: &mut Vec<u8>,
        fetched: &mut FetchedParts,
    ) -> Result<(), FetchFault> {
        let mut fault = FetchFault::Missing;
        loop {
            self.query_next_owner(lane, rest, fetched).await;
            let Some(source) = &mut lane.source else { return Err(fault) };
            let received = source.receive(slot, piece).await;
            let peer = source.peer;
            fault = match received {
                Ok(identity) => {
                    fetched.bytes += source.part_bytes as u64;
                    lane.identity = Some(identity);
                    return Ok(());
                }
                Err(fault) => fault,
            };
            let Some(source) = lane.source.take() else { return Err(fault) };
            match self.give_up(source, lane.shard, fault).await {
                Ok(candidate) => {
                    lane.candidates.push_front(candidate);
                    fault = FetchFault::Missing;
                }
                Err(why) => {
                    fetched.stop(peer, why.clone());
                    fault = why;
                }
            }
            if fault.is_ours() {
                return Err(fault);
            }
        }
    }

    /// Closes a failed source, and returns its fault. If only its connection was out of date, returns a new connection
    /// to the same owner instead.
    async fn give_up(
        &self,
        source: Source<'a>,
        shard: Shard,
        fault: FetchFault,
    ) -> Result<Candidate, FetchFault> {
        let Source { peer, parts, is_untried, .. } = source;
        if is_untried && matches!(fault, FetchFault::Lost(_) | FetchFault::Fenced) {
            // The old source keeps the owner's old set. Drop it first, so that the new set can be imported.
            drop(parts);
            return self.retry_candidate(shard, peer).await;
        }
        let ended = Err(fault.clone());
        if let Some(connection) = parts.close(&ended).await {
            self.put_idle(peer, connection);
        }
        Err(fault)
    }

    /// Starts the stream of a part from an owner.
    fn source(
        &self,
        Candidate { peer, connection, is_reused }: Candidate,
        rest: &'a [SequenceHash],
    ) -> Result<Source<'a>, FetchFault> {
        let plan = match &connection.exchange {
            Exchange::Whole => Arc::new(PartPlan::whole(self.connections.block_bytes())),
            Exchange::Part(plan) => Arc::clone(plan),
        };
        let part_bytes = plan.bytes();
        let parts = (self.begin)(connection, rest, plan)?;
        Ok(Source { peer, parts, part_bytes, is_untried: is_reused })
    }

    /// Reconnects to an owner, which may have closed the previous connection. Fails if the owner's layout has changed.
    async fn retry_candidate(&self, shard: Shard, peer: usize) -> Result<Candidate, FetchFault> {
        let address = self.request.peers.get(peer).ok_or(FetchFault::Missing)?;
        let connection = self.connections.connect(address).await?;
        if connection.shard != shard {
            let text = "its layout has changed: fetch again".to_owned();
            return Err(FetchFault::Unavailable(text));
        }
        Ok(Candidate { peer, connection, is_reused: false })
    }
}

impl<'a> Group<'a> {
    /// The first lane whose part of the block is missing.
    fn lacks(&mut self) -> Option<&mut Lane<'a>> {
        self.lanes.iter_mut().find(|lane| !lane.is_ready())
    }

    /// Creates a group with one lane for each part that covers the heads `own`. `count` is the number of parts.
    fn new(own: Shard, count: u32) -> Self {
        let lane = |number| Lane {
            shard: Shard { number, count },
            candidates: VecDeque::new(),
            source: None,
            identity: None,
        };
        Self { count, lanes: own.covered_by(count).map(lane).collect() }
    }

    /// The identity of the block, after all parts were received.
    fn identity(&self) -> Result<BlockIdentity, FetchFault> {
        let mut identities = self.lanes.iter().filter_map(|lane| lane.identity);
        let first = identities.next().ok_or(FetchFault::Missing)?;
        if identities.all(|other| other == first) {
            return Ok(first);
        }
        Err(FetchFault::Corrupt("the owners state different identities for the block".to_owned()))
    }
}

impl Lane<'_> {
    /// Whether the part of the block was received from an owner whose set is still valid.
    fn is_ready(&self) -> bool {
        let is_valid = self.source.as_ref().is_some_and(|source| !source.parts.is_fenced());
        is_valid && self.identity.is_some()
    }

    /// Counts a block for the owner of this part.
    fn count(&self, fetched: &mut FetchedParts) {
        if let Some(peer) = self.source.as_ref().and_then(|at| fetched.peers.get_mut(at.peer)) {
            peer.blocks += 1;
        }
    }
}

impl Source<'_> {
    /// Receives the part of the next block into its slot, and returns the block's identity. Fails if the owner's set
    /// has ended.
    async fn receive(
        &mut self,
        slot: &mut Filling,
        piece: &mut Vec<u8>,
    ) -> Result<BlockIdentity, FetchFault> {
        if self.parts.is_fenced() {
            return Err(FetchFault::Fenced);
        }
        let identity = self.parts.next(slot, piece).await?;
        self.is_untried = false;
        if self.parts.is_fenced() { Err(FetchFault::Fenced) } else { Ok(identity) }
    }
}
