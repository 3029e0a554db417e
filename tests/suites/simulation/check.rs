//! What must hold.

use crate::server::Live;
use crate::truth::{Content, LIMITS, digest};
use crate::world::World;
use kvasir_index::{Index, Query, QueryKey, Scratch, SharedBlocks, SourceId};
use kvasir_proto::types::{DpRank, HeldBlock, LocalHash, SourceState, Tier, TierSet, WorkerId};
use kvasir_tests::oracle::{Found, Oracle, Question, QuestionKey, Roles};
use rand::Rng;
use std::collections::BTreeMap;

/// Questions asked of each server in the end.
const QUESTIONS: usize = 40;

/// All that the sources of a worker hold.
fn contents(index: &mut Index, worker: &WorkerId) -> BTreeMap<SourceId, Content> {
    let mut contents: BTreeMap<SourceId, Content> = BTreeMap::new();
    let Some(view) = index.worker(worker) else { return contents };
    contents.extend(view.sources().map(|(source, ..)| (source, Content::new())));
    let mut scan = index.begin_dump(worker, None).expect("it is known");
    let mut records = Vec::new();
    while index.dump_chunk(&mut scan, 100, &mut records).expect("nothing comes between") {}
    index.cancel_dump(scan);
    for at in records {
        let held =
            HeldBlock { name: at.name, parent: at.parent, local: at.local, copies: at.copies };
        contents.entry(at.source).or_default().insert((at.rank, at.name), held);
    }
    contents
}

fn of_source(index: &mut Index, worker: &WorkerId, source: Option<SourceId>) -> Content {
    let Some(source) = source else { return Content::new() };
    contents(index, worker).remove(&source).unwrap_or_default()
}

impl World {
    /// Who counts as exact holds what its engine held at the cursor.
    pub fn check_exact(&mut self) {
        for server in 0..self.servers.len() {
            let Some(live) = &mut self.servers[server].live else { continue };
            for (&agent, follower) in &live.followers {
                let status = follower.recovery.status();
                let shown = follower.source.and_then(|source| live.index.status(source));
                let is_partial = shown.is_some_and(|at| at.state == SourceState::Partial);
                if status.state != SourceState::Exact || is_partial {
                    continue;
                }
                let truth = &self.agents[agent].truth;
                let held = of_source(&mut live.index, &truth.worker, follower.source);
                let expected = match status.applied {
                    Some(cursor) => truth.life_of(cursor.incarnation).digest(Some(cursor.sequence)),
                    None => Some(digest(&Content::new())),
                };
                self.seen.add("an exact source is compared");
                assert_eq!(
                    Some(digest(&held)),
                    expected,
                    "server {server}, agent {agent} is exact at {:?}, and holds {held:?}",
                    status.applied
                );
            }
            for (&bare, link) in &live.links {
                let status = link.sequencer.status();
                let shown = live.index.status(link.source).expect("it is there");
                let open = self.subscriptions.get(&(bare, server));
                let truth = &self.bares[bare].truth;
                // While bytes of a process that is gone are on their way, nothing can be known.
                let is_stale = open.is_none_or(|open| open.life + 1 != truth.lives.len());
                if status.state != SourceState::Exact
                    || shown.state == SourceState::Partial
                    || is_stale
                {
                    continue;
                }
                let held = of_source(&mut live.index, &truth.worker, Some(link.source));
                let cursor = status
                    .applied
                    .and_then(|cursor| Some((cursor.fingerprint?.ts_bits, cursor.sequence)));
                let expected = match cursor {
                    Some((life, sequence)) => {
                        truth.lives[usize::try_from(life).expect("small")].digest(Some(sequence))
                    }
                    None => Some(digest(&Content::new())),
                };
                self.seen.add("an exact bare engine is compared");
                assert_eq!(
                    Some(digest(&held)),
                    expected,
                    "server {server}, bare engine {bare} is exact at {cursor:?}, and holds {held:?}"
                );
            }
        }
    }

    /// Every server says that it knows everything, and does.
    pub fn check_end(&mut self) {
        self.check_exact();
        let mut oracle = Oracle::new(LIMITS);
        let agents = self.agents.iter().map(|agent| &agent.truth);
        let bares = self.bares.iter().map(|bare| &bare.truth);
        agents.chain(bares).for_each(|truth| truth.tell(&mut oracle));
        oracle.set_roles(self.plans.roles.clone());
        let questions: Vec<_> = (0..QUESTIONS).map(|_| self.question()).collect();
        for server in 0..self.servers.len() {
            self.check_sources(server);
            let live = self.servers[server].live.as_mut().expect("it was started");
            if let Err(broken) = live.index.validate() {
                panic!("server {server}: {broken}");
            }
            for question in &questions {
                let found = find(live, question);
                let expected = oracle.find(question);
                if expected.iter().any(|at| at.pool_blocks > 0) {
                    self.seen.add("a pool holds what its readers lack");
                }
                if question.shared {
                    check_shared(&oracle, &live.index, &self.plans.roles, question, &found);
                    continue;
                }
                assert_eq!(found, expected, "server {server}: {question:?}");
            }
        }
    }

    fn check_sources(&mut self, server: usize) {
        let live = self.servers[server].live.as_mut().expect("it was started");
        for (number, agent) in self.agents.iter().enumerate() {
            let truth = &agent.truth;
            let follower = live.followers.get(&number);
            let follower = follower.unwrap_or_else(|| panic!("agent {number} is not known"));
            let status = follower.recovery.status();
            assert_eq!(
                status.state,
                SourceState::Exact,
                "server {server}, agent {number} ({:?}): {status:?}",
                agent.delivery
            );
            let applied = status.applied.map(|cursor| cursor.sequence);
            assert_eq!(applied, truth.life().newest(), "server {server}, agent {number}");
            if !agent.answers {
                assert_eq!(follower.recovery.counts().lost, 0, "server {server}, agent {number}");
            }
            let source = follower.source;
            if let Some(shown) = source.and_then(|source| live.index.status(source)) {
                assert_eq!(shown.state, SourceState::Exact, "server {server}, agent {number}");
            }
            let held = of_source(&mut live.index, &truth.worker, source);
            assert_eq!(held, truth.content(), "server {server}, agent {number}");
        }
        for (number, bare) in self.bares.iter().enumerate() {
            let truth = &bare.truth;
            let source = live.links[&number].source;
            let shown = live.index.status(source).expect("it is there");
            assert_eq!(
                shown.state,
                SourceState::Exact,
                "server {server}, bare engine {number}: {shown:?}"
            );
            let held = of_source(&mut live.index, &truth.worker, Some(source));
            assert_eq!(held, truth.content(), "server {server}, bare engine {number}");
        }
    }

    fn question(&mut self) -> Question {
        let rng = &mut self.rng;
        let length = rng.random_range(1..10);
        let locals = (0..length).map(|_| LocalHash(rng.random_range(1..=2))).collect();
        let tiers = match rng.random_range(0..3) {
            0 => TierSet::EMPTY.with(Tier::Device),
            _ => TierSet::ALL,
        };
        let key = QuestionKey::Locals(locals);
        Question { key, tiers, workers: None, minimum_overlap: 1, shared: rng.random_bool(0.5) }
    }
}

/// A rank holds at least what it holds by itself, and what each pool that it reads holds. How much more that is together
/// depends on blocks behind holes, and a dump does not say where these stand: suite `index` compares that.
fn check_shared(
    oracle: &Oracle,
    index: &Index,
    roles: &Roles,
    question: &Question,
    found: &[Found],
) {
    let mut plain = oracle.clone();
    plain.set_roles(Roles::default());
    let alone = Question { shared: false, minimum_overlap: 0, ..question.clone() };
    let alone = plain.find(&alone);
    // A rank that has published nothing is not known, and not listed.
    let is_known = |at: &&Found| {
        let mut ranks = index.worker(&at.worker).into_iter().flat_map(|worker| worker.holders());
        ranks.any(|rank| rank.rank() == at.rank)
    };
    let workers = alone.iter().filter(|at| !roles.pools.contains(&at.worker));
    for at in workers.filter(is_known) {
        let reads = roles.reads.get(&at.worker).into_iter().flatten();
        let pools = reads.filter(|pool| roles.pools.contains(*pool));
        // Of one rank of a pool: all of them together may hold more.
        let of = |pool: &WorkerId| {
            alone.iter().filter(|at| at.worker == *pool).map(|at| at.blocks).max()
        };
        // Tiers are those of workers: only with all of them is a pool's answer that of a worker.
        let in_pools = pools.filter_map(of).max().filter(|_| question.tiers == TierSet::ALL);
        let least = at.blocks.max(in_pools.unwrap_or(0));
        let same = |found: &&Found| (&found.worker, found.rank) == (&at.worker, at.rank);
        let blocks = found.iter().find(same).map_or(0, |found| found.blocks);
        assert!(blocks >= least, "{question:?}: {blocks} and not {least} of {at:?}");
    }
    assert!(
        found.iter().all(|at| !roles.pools.contains(&at.worker)),
        "a pool is no match: {found:?}"
    );
}

fn find(live: &Live, question: &Question) -> Vec<Found> {
    let QuestionKey::Locals(locals) = &question.key else { return Vec::new() };
    let mut scratch = Scratch::default();
    let mut shared = SharedBlocks::default();
    shared.begin(locals.len());
    if question.shared {
        assert!(live.index.add_shared(QueryKey::Locals(locals), &mut shared, || true), "wanted");
    }
    let query = Query {
        key: QueryKey::Locals(locals),
        tiers: question.tiers,
        workers: None,
        minimum_overlap: question.minimum_overlap,
        shared: question.shared.then_some(&shared),
        prompt: None,
    };
    live.index.find(query, &mut scratch);
    let found = scratch.matches().iter().map(|at| {
        let holder = live.index.holder(at.holder).expect("a match of a known rank");
        let (worker, rank): (WorkerId, DpRank) = (holder.worker().clone(), holder.rank());
        Found {
            worker,
            rank,
            blocks: at.blocks,
            by_tier: at.by_tier,
            by_best_tier: at.by_best_tier,
            pool_blocks: at.pool_blocks,
        }
    });
    found.collect()
}
