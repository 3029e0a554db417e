//! gRPC service `BlockManager`.

use super::held::ReadStream;
use super::messages;
use super::opened::SessionStream;
use super::shared::BlockManagerService;
use super::status::{no_session, of_allocate, of_session, of_ttl, refused, stopping};
use kvasir_access::Principal;
use kvasir_blocks::{BlockTier, Found, LaneStats, PoolStats, Priority, Route, SlotId};
use kvasir_process::access::check_own_worker;
use kvasir_process::port::principal;
use kvasir_proto::convert::{
    BlockWrite, Commits, ConvertError, LoadQuestion, NewSession, Onboarding, PinBlocks,
    PrefixQuery, SequenceList, SlotLease, SlotList, UnpinBlocks,
};
use kvasir_proto::pb;
use kvasir_proto::pb::block_manager_server::BlockManager;
use kvasir_tiers::manager::{ManagerMetrics, OnboardRequest};
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tonic::{Request, Response, Status};

impl BlockManagerService {
    /// Checks the caller, and that the agent is not stopping.
    fn let_in<T>(&self, request: &Request<T>) -> Result<Arc<Principal>, Status> {
        let principal = principal(request)?;
        check_own_worker(&principal, &self.address)?;
        if self.stop.is_cancelled() { Err(stopping()) } else { Ok(principal) }
    }

    /// Checks caller and request; returns both.
    fn admit<T, C>(&self, request: Request<T>) -> Result<(Arc<Principal>, C), Status>
    where
        C: TryFrom<T, Error = ConvertError>,
    {
        let principal = self.let_in(&request)?;
        Ok((principal, C::try_from(request.into_inner()).map_err(refused)?))
    }

    fn checked<T, C>(&self, request: Request<T>) -> Result<C, Status>
    where
        C: TryFrom<T, Error = ConvertError>,
    {
        self.admit(request).map(|(_principal, checked)| checked)
    }

    /// Answers a prefix query: the leading blocks of a prompt in each tier. Also holds these blocks if the query names
    /// a session, and recommends loading or computing if the query has a question.
    fn found(&self, query: &PrefixQuery) -> Result<pb::MatchPrefixResponse, Status> {
        let found = self.manager.find(&query.sequences);
        let nearest = found.blocks.iter().filter_map(|tiers| tiers.iter().next());
        let leading = |tier: &BlockTier| pb::TierPrefix {
            tier: messages::tier(*tier).into(),
            leading_blocks: count(found.leading(*tier)),
        };
        let held = match query.hold {
            None => Vec::new(),
            Some(id) => {
                let held = self.session(id)?.session.hold_prefix(&query.sequences);
                messages::all_held(&held.map_err(of_session)?)
            }
        };
        let verdicts = query.question.map(|question| self.verdicts(&found, question));
        Ok(pb::MatchPrefixResponse {
            nearest: nearest.map(|tier| messages::tier(tier).into()).collect(),
            tiers: self.tiers().map(|tier| leading(&tier)).collect(),
            held,
            verdicts: verdicts.unwrap_or_default(),
        })
    }

    /// The configured tiers, nearest first.
    fn tiers(&self) -> impl Iterator<Item = BlockTier> {
        self.config.manager.blocks.tiers.keys().copied()
    }

    /// Recommends loading or computing for each lower tier that has blocks of the prompt. Counts each recommendation.
    fn verdicts(&self, found: &Found, question: LoadQuestion) -> Vec<pb::LoadVerdict> {
        let lower = self.tiers().skip_while(|tier| *tier <= self.manager.engine_tier());
        let verdict = |(to, from): (BlockTier, BlockTier)| {
            let blocks = count(found.nearest(from));
            let LoadQuestion { prefill_tokens_per_second, prefill_wait } = question;
            let route = Route { from, to };
            let asked =
                || self.manager.decide(route, blocks, prefill_tokens_per_second, prefill_wait);
            (blocks > 0).then(|| {
                let verdict = asked();
                self.verdicts.count(verdict);
                messages::verdict(&verdict, blocks)
            })
        };
        self.tiers().zip(lower).filter_map(verdict).collect()
    }

    /// Returns the figures of all tiers, routes and sessions.
    fn stats(&self) -> pb::GetBlockStatsResponse {
        let ManagerMetrics { blocks, sessions, corrupt, .. } = self.manager.metrics();
        let pool = |(tier, pool): (&BlockTier, &PoolStats)| {
            messages::pool(*tier, pool, corrupt.get(tier).copied().unwrap_or_default())
        };
        let lane = |(route, lane): (&Route, &LaneStats)| {
            let measured = self.manager.decide(*route, 0, 0.0, Duration::ZERO).bytes_per_second;
            messages::lane(*route, lane, measured.map(messages::whole).unwrap_or_default())
        };
        pb::GetBlockStatsResponse {
            block_bytes: self.manager.block_bytes() as u64,
            pools: blocks.pools.iter().map(pool).collect(),
            lanes: blocks.lanes.iter().map(lane).collect(),
            sessions: sessions.open,
            sessions_lost: sessions.lost,
            blocks: blocks.events.held_blocks,
            events_queued: blocks.events.queued_events,
            event_overflows: blocks.events.overflows,
        }
    }
}

/// Number of a request's items, which fits into the type.
fn count(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[tonic::async_trait]
impl BlockManager for BlockManagerService {
    type OpenSessionStream = SessionStream;
    type ReadStream = ReadStream;

    async fn open_session(
        &self,
        request: Request<pb::OpenSessionRequest>,
    ) -> Result<Response<SessionStream>, Status> {
        let (principal, wanted) = self.admit::<_, NewSession>(request)?;
        self.open_session(&principal, wanted).map(Response::new)
    }

    /// Ends the session that the request names. Fails with `NOT_FOUND` if the session is unknown.
    async fn end_session(
        &self,
        request: Request<pb::EndSessionRequest>,
    ) -> Result<Response<pb::EndSessionResponse>, Status> {
        self.end_session(self.checked(request)?)?;
        Ok(Response::new(pb::EndSessionResponse {}))
    }

    async fn allocate(
        &self,
        request: Request<pb::AllocateRequest>,
    ) -> Result<Response<pb::AllocateResponse>, Status> {
        let SlotLease { session, count, lease } = self.checked(request)?;
        let slots = self.session(session)?.session.allocate(count, lease).map_err(of_allocate)?;
        let slots = slots.into_iter().map(|leased| leased.slot.0).collect();
        Ok(Response::new(pb::AllocateResponse { slots }))
    }

    async fn write(
        &self,
        request: Request<pb::WriteRequest>,
    ) -> Result<Response<pb::WriteResponse>, Status> {
        let write: BlockWrite = self.checked(request)?;
        self.write_part(self.session(write.session)?, write).await?;
        Ok(Response::new(pb::WriteResponse {}))
    }

    async fn commit(
        &self,
        request: Request<pb::CommitRequest>,
    ) -> Result<Response<pb::CommitResponse>, Status> {
        let commits: Commits = self.checked(request)?;
        self.commit_all(self.session(commits.session)?, commits).await.map(Response::new)
    }

    async fn abort(
        &self,
        request: Request<pb::AbortRequest>,
    ) -> Result<Response<pb::AbortResponse>, Status> {
        let SlotList { session, slots } = self.checked(request)?;
        let open = self.session(session)?;
        let aborted = slots.into_iter().filter(|slot| open.session.abort(SlotId(*slot))).count();
        Ok(Response::new(pb::AbortResponse { aborted: count(aborted) }))
    }

    async fn match_prefix(
        &self,
        request: Request<pb::MatchPrefixRequest>,
    ) -> Result<Response<pb::MatchPrefixResponse>, Status> {
        self.found(&self.checked(request)?).map(Response::new)
    }

    async fn onboard(
        &self,
        request: Request<pb::OnboardRequest>,
    ) -> Result<Response<pb::OnboardResponse>, Status> {
        let Onboarding { list, timeout } = self.checked(request)?;
        let open = self.session(list.session)?;
        let wanted = OnboardRequest { priority: Priority(list.priority), timeout };
        let onboarded = select! {
            onboarded = self.bring(&open.session, &list.sequences, wanted) => onboarded,
            () = open.over.cancelled() => return Err(no_session()),
        };
        let onboarded = onboarded.map_err(of_session)?;
        let stopped = onboarded.stopped.map(|stopped| messages::fault(stopped.reason));
        let (fault, tier) = stopped.unwrap_or((pb::BlockFault::Unspecified, None));
        Ok(Response::new(pb::OnboardResponse {
            blocks: messages::all_held(&onboarded.blocks),
            fault: fault.into(),
            fault_tier: tier.map_or(pb::BlockTier::Unspecified, messages::tier).into(),
        }))
    }

    async fn fetch(
        &self,
        request: Request<pb::FetchRequest>,
    ) -> Result<Response<pb::FetchResponse>, Status> {
        self.fetch_blocks(self.checked(request)?).await.map(Response::new)
    }

    async fn offload(
        &self,
        request: Request<pb::OffloadRequest>,
    ) -> Result<Response<pb::OffloadResponse>, Status> {
        let SequenceList { session, sequences, priority } = self.checked(request)?;
        self.session(session)?;
        let offload = |sequence| self.manager.offload(sequence, Priority(priority));
        let outcomes = sequences.into_iter().map(offload);
        let outcomes = outcomes.map(|at| messages::offload_outcome(&at).into()).collect();
        Ok(Response::new(pb::OffloadResponse { outcomes }))
    }

    async fn read(
        &self,
        request: Request<pb::ReadRequest>,
    ) -> Result<Response<ReadStream>, Status> {
        let list: SlotList = self.checked(request)?;
        self.read_all(self.session(list.session)?, list).map(Response::new)
    }

    async fn verify(
        &self,
        request: Request<pb::VerifyRequest>,
    ) -> Result<Response<pb::VerifyResponse>, Status> {
        let list: SlotList = self.checked(request)?;
        self.verify_all(self.session(list.session)?, list).await.map(Response::new)
    }

    async fn release(
        &self,
        request: Request<pb::ReleaseRequest>,
    ) -> Result<Response<pb::ReleaseResponse>, Status> {
        let SlotList { session, slots } = self.checked(request)?;
        let open = self.session(session)?;
        let released = slots.into_iter().filter(|slot| open.session.release(SlotId(*slot)));
        Ok(Response::new(pb::ReleaseResponse { released: count(released.count()) }))
    }

    async fn pin(
        &self,
        request: Request<pb::PinRequest>,
    ) -> Result<Response<pb::PinResponse>, Status> {
        let PinBlocks { session, sequences, ttl } = self.checked(request)?;
        self.session(session)?;
        let pin = |sequence| {
            let pin = self.manager.pin(sequence, ttl);
            match pin.as_ref().err().and_then(of_ttl) {
                Some(refusal) => Err(refusal),
                None => Ok(messages::pinned(pin)),
            }
        };
        let blocks = sequences.into_iter().map(pin).collect::<Result<_, _>>()?;
        Ok(Response::new(pb::PinResponse { blocks }))
    }

    async fn unpin(
        &self,
        request: Request<pb::UnpinRequest>,
    ) -> Result<Response<pb::UnpinResponse>, Status> {
        let UnpinBlocks { session, pins } = self.checked(request)?;
        self.session(session)?;
        let pins = pins.iter().filter_map(messages::read_pin);
        let unpinned = pins.filter(|pin| self.manager.unpin(*pin)).count();
        Ok(Response::new(pb::UnpinResponse { unpinned: count(unpinned) }))
    }

    async fn get_stats(
        &self,
        request: Request<pb::GetBlockStatsRequest>,
    ) -> Result<Response<pb::GetBlockStatsResponse>, Status> {
        self.let_in(&request)?;
        Ok(Response::new(self.stats()))
    }
}
