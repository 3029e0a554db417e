//! Compares loads with a reference that recounts everything each time.

use super::*;
use kvasir_proto::types::{SequenceHash, WorkerId, WorkerKey};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

const BLOCK: NonZeroU32 = NonZeroU32::new(16).expect("not 0");
const BLOCK_SIZE: u64 = 16;
const LEASE_SECS: u64 = 20;
const RANKS: usize = 3;
const REQUESTS: u8 = 8;

#[derive(Debug, Clone)]
enum Step {
    Add {
        request: u8,
        rank: usize,
        path: Vec<u64>,
        tail_tokens: u64,
        cached: u64,
        osl: Option<u64>,
    },
    Complete(u8),
    Output(u8, u64),
    Renew(u8),
    Free(u8),
    Expire,
    Forget(usize),
    Wait(u64),
}

/// A request in the reference.
#[derive(Debug, Clone)]
struct Known {
    rank: usize,
    chain: Vec<u64>,
    input_tokens: u64,
    prefill_tokens: u64,
    is_completed: bool,
    output_tokens: u64,
    osl: Option<u64>,
    expires: u64,
}

#[derive(Debug, Default)]
struct Reference(BTreeMap<u8, Known>);

impl Reference {
    fn renewed(&mut self, request: u8, now: u64) -> Option<&mut Known> {
        let known = self.0.get_mut(&request)?;
        known.expires = known.expires.max(now + LEASE_SECS);
        Some(known)
    }

    fn load(&self, rank: usize, config: &ActiveConfig) -> RankLoad {
        let here: Vec<_> = self.0.values().filter(|known| known.rank == rank).collect();
        let prefixes =
            here.iter().flat_map(|known| (1..=known.chain.len()).map(|at| &known.chain[..at]));
        let prompt_blocks = match (config.blocks, config.reuse) {
            (BlockTracking::Off, _) => 0,
            (_, KvReuse::Assumed) => prefixes.collect::<BTreeSet<_>>().len(),
            (_, KvReuse::Unique) => prefixes.count(),
        };
        let open = here.iter().filter(|known| !known.is_completed);
        let tokens: u64 = open.clone().map(|known| known.prefill_tokens).sum();
        RankLoad {
            requests: here.len() as u64,
            prefilling_requests: open.count() as u64,
            prompt_blocks: prompt_blocks as u64,
            output_milliblocks: match config.blocks {
                BlockTracking::PromptAndOutput => here.iter().map(|known| output(known)).sum(),
                BlockTracking::Off | BlockTracking::Prompt => 0,
            },
            prefill_tokens: if config.track_prefill_tokens { tokens } else { 0 },
            computed_tokens: 0,
            context_tokens: match config.blocks {
                BlockTracking::Off => 0,
                BlockTracking::Prompt | BlockTracking::PromptAndOutput => {
                    here.iter().map(|known| known.input_tokens).sum()
                }
            },
            foreign_blocks: 0,
            given_tokens: 0,
        }
    }

    /// Number of leading blocks of a chain that a rank's requests use.
    fn shared(&self, rank: usize, chain: &[u64], config: &ActiveConfig) -> u32 {
        if config.blocks == BlockTracking::Off || config.reuse == KvReuse::Unique {
            return 0;
        }
        let here = self.0.values().filter(|known| known.rank == rank);
        let common =
            |known: &Known| known.chain.iter().zip(chain).take_while(|(a, b)| a == b).count();
        u32::try_from(here.map(common).max().unwrap_or(0)).expect("short")
    }
}

/// Output in thousandths of blocks, with the weights of document 004.
fn output(known: &Known) -> u64 {
    let blocks = (known.input_tokens + known.output_tokens).div_ceil(BLOCK_SIZE)
        - known.input_tokens.div_ceil(BLOCK_SIZE);
    let Some(osl) = known.osl else { return blocks * 1_000 };
    blocks * 1_000 * osl.saturating_sub(known.output_tokens) / osl.max(1)
}

fn worker(rank: usize) -> WorkerKey {
    let rank = u32::try_from(rank).expect("few");
    WorkerKey { worker: WorkerId::new("w").expect("a name"), rank }
}

fn key(request: u8) -> RequestKey {
    RequestKey::new(RouterId(u64::from(request % 2)), &request.to_string()).expect("an id")
}

/// Hashes of a path through a tree with three branches per block. A hash identifies the path to it.
fn chain(path: &[u64]) -> Vec<u64> {
    let step = |at: &mut u64, branch: &u64| {
        *at = *at * 4 + branch + 1;
        Some(*at)
    };
    path.iter().scan(0, step).collect()
}

fn hashes(chain: &[u64]) -> Vec<SequenceHash> {
    chain.iter().copied().map(SequenceHash).collect()
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let request = 0..REQUESTS;
    let path = prop_oneof![
        proptest::collection::vec(0_u64..3, 0..6),
        proptest::collection::vec(0_u64..1, 0..24),
        (proptest::collection::vec(0_u64..1, 0..20), 0_u64..3).prop_map(|(mut path, last)| {
            path.push(last);
            path
        }),
    ];
    let add = (request.clone(), 0..RANKS, path, 0..BLOCK_SIZE, 0_u64..400, any::<Option<u8>>());
    let add = add.prop_map(|(request, rank, path, tail_tokens, cached, osl)| {
        let osl = osl.map(u64::from);
        Step::Add { request, rank, path, tail_tokens, cached, osl }
    });
    let step = prop_oneof![
        8 => add,
        3 => request.clone().prop_map(Step::Complete),
        4 => (request.clone(), 0_u64..300).prop_map(|(request, tokens)| Step::Output(request, tokens)),
        1 => request.clone().prop_map(Step::Renew),
        4 => request.prop_map(Step::Free),
        1 => Just(Step::Expire),
        1 => (0..RANKS).prop_map(Step::Forget),
        3 => (0_u64..12).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 0..80)
}

fn configs() -> impl Strategy<Value = ActiveConfig> {
    let blocks = prop_oneof![
        1 => Just(BlockTracking::Off),
        1 => Just(BlockTracking::Prompt),
        3 => Just(BlockTracking::PromptAndOutput),
    ];
    let reuse = prop_oneof![3 => Just(KvReuse::Assumed), 1 => Just(KvReuse::Unique)];
    (blocks, reuse, any::<bool>()).prop_map(|(blocks, reuse, track_prefill_tokens)| ActiveConfig {
        blocks,
        reuse,
        track_prefill_tokens,
        lease: Duration::from_secs(LEASE_SECS),
        ..ActiveConfig::new(BLOCK)
    })
}

/// The loads and the reference, and the time in seconds.
struct Both {
    loads: ActiveLoads,
    ranks: [RankId; RANKS],
    reference: Reference,
    now: u64,
}

impl Both {
    fn new(config: ActiveConfig) -> Self {
        let mut loads = ActiveLoads::new(config);
        let ranks = [0, 1, 2].map(|rank| loads.join(&worker(rank)).expect("room"));
        Self { loads, ranks, reference: Reference::default(), now: 0 }
    }

    fn add(&mut self, step: &Step) {
        let Step::Add { request, rank, path, tail_tokens, cached, osl } = step else { return };
        let chain = chain(path);
        let input_tokens = chain.len() as u64 * BLOCK_SIZE + tail_tokens;
        let prefill_tokens = input_tokens.saturating_sub(*cached);
        let hashes = hashes(&chain);
        let new = NewRequest {
            rank: self.ranks[*rank],
            blocks: PromptBlocks::Chain(&hashes),
            input_tokens,
            prefill_tokens,
            expected_output_tokens: *osl,
        };
        let added = self.loads.add(&key(*request), new, Duration::from_secs(self.now));
        if self.reference.0.contains_key(request) {
            assert_eq!(added, Err(AddError::Duplicate));
            return;
        }
        assert_eq!(added, Ok(()));
        let expires = self.now + LEASE_SECS;
        let known = Known {
            rank: *rank,
            chain,
            input_tokens,
            prefill_tokens,
            is_completed: false,
            output_tokens: 0,
            osl: *osl,
            expires,
        };
        self.reference.0.insert(*request, known);
    }

    fn step(&mut self, step: &Step) {
        let now = Duration::from_secs(self.now);
        match step {
            Step::Add { .. } => self.add(step),
            Step::Complete(request) => {
                let update = self.loads.mark_prefill_completed(&key(*request), now);
                let known = self.reference.renewed(*request, self.now);
                assert_eq!(update == Update::Unknown, known.is_none());
                known.into_iter().for_each(|known| known.is_completed = true);
            }
            Step::Output(request, tokens) => {
                self.loads.report_output(&key(*request), *tokens, now);
                if let Some(known) = self.reference.renewed(*request, self.now) {
                    known.is_completed |= *tokens > 0;
                    known.output_tokens = known.output_tokens.max(*tokens);
                }
            }
            Step::Renew(request) => {
                self.loads.renew(&key(*request), now);
                self.reference.renewed(*request, self.now);
            }
            Step::Free(request) => {
                let update = self.loads.free(&key(*request));
                let known = self.reference.0.remove(request);
                assert_eq!(update == Update::Unknown, known.is_none());
            }
            Step::Expire => {
                let expired: BTreeSet<_> =
                    self.loads.expire(now).into_iter().map(|expired| expired.key).collect();
                let time = self.now;
                let gone = self.reference.0.extract_if(.., |_, known| known.expires <= time);
                assert_eq!(expired, gone.map(|(request, _)| key(request)).collect());
            }
            Step::Forget(rank) => {
                let gone = self.loads.forget(self.ranks[*rank]);
                let here = self.reference.0.extract_if(.., |_, known| known.rank == *rank);
                assert_eq!(gone, here.count() as u64);
                self.ranks[*rank] = self.loads.join(&worker(*rank)).expect("room");
            }
            Step::Wait(secs) => self.now += secs,
        }
    }

    fn check(&self, config: &ActiveConfig, probe: &[u64]) {
        self.loads.validate();
        let shared = self.loads.shared(&hashes(probe));
        for (at, rank) in self.ranks.iter().enumerate() {
            let load = self.reference.load(at, config);
            assert_eq!(self.loads.load(*rank), load);
            let later = self.loads.load_at(*rank, Duration::from_secs(self.now + 1));
            assert!(later.computed_tokens <= load.prefill_tokens, "{later:?}");
            assert_eq!(RankLoad { computed_tokens: 0, given_tokens: 0, ..later }, load);
            assert_eq!(shared.of(*rank), self.reference.shared(at, probe, config));
            assert_eq!(self.loads.digest(*rank).requests, self.loads.load(*rank).requests);
        }
        assert_eq!(self.loads.len(), self.reference.0.len());
    }
}

proptest! {
    #[test]
    fn counts_are_those_of_the_reference(
        config in configs(),
        steps in steps(),
        probe in proptest::collection::vec(0_u64..2, 0..24),
    ) {
        let mut both = Both::new(config);
        let probe = chain(&probe);
        for step in &steps {
            both.step(step);
            both.check(&config, &probe);
        }
        for request in 0..REQUESTS {
            both.step(&Step::Free(request));
        }
        both.check(&config, &probe);
        for rank in both.ranks {
            prop_assert!(both.loads.load(rank).is_empty());
            prop_assert_eq!(both.loads.digest(rank), LoadDigest::default());
        }
        prop_assert!(both.loads.is_empty() && both.loads.next_expiry().is_none());
    }

    /// Without reports, all requests are freed, whatever happened before.
    #[test]
    fn no_load_outlives_its_lease(config in configs(), steps in steps()) {
        let mut both = Both::new(config);
        steps.iter().for_each(|step| both.step(step));
        both.step(&Step::Wait(LEASE_SECS));
        both.step(&Step::Expire);
        prop_assert!(both.loads.is_empty());
        prop_assert!(both.ranks.iter().all(|rank| both.loads.load(*rank).is_empty()));
    }

    /// Replicas with the same reports about requests agree, whatever the order.
    #[test]
    fn digests_do_not_depend_on_order(
        config in configs(),
        paths in proptest::collection::vec((proptest::collection::vec(0_u64..2, 0..5), any::<bool>()), 1..10),
        turn in any::<usize>(),
    ) {
        let ends: Vec<_> = (0..).zip(&paths).collect();
        let digests = |order: &[(u8, &(Vec<u64>, bool))]| {
            let mut loads = ActiveLoads::new(config);
            let rank = loads.join(&worker(0)).expect("room");
            for (request, (path, is_completed)) in order {
                let hashes = hashes(&chain(path));
                let new = NewRequest {
                    rank,
                    blocks: PromptBlocks::Chain(&hashes),
                    input_tokens: 7,
                    prefill_tokens: 7,
                    expected_output_tokens: None,
                };
                loads.add(&key(*request), new, Duration::ZERO).expect("added");
                if *is_completed {
                    loads.mark_prefill_completed(&key(*request), Duration::ZERO);
                }
            }
            loads.digest(rank)
        };
        let mut turned = ends.clone();
        turned.rotate_left(turn % ends.len());
        turned.reverse();
        prop_assert_eq!(digests(&ends), digests(&turned));
        prop_assert_ne!(digests(&ends), digests(&ends[1..]));
    }
}
