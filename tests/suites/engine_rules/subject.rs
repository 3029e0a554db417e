//! What is tested: the decoder, the normaliser and the index, put together as a server does. What tasks do between them
//! (reasons, states, restarts) is copied by hand.

use crate::fault::Fault;
use crate::prompt::{ADAPTERS, Prompt, SALTS, UNNAMED};
use crate::setup::Setup;
use kvasir_engine::decode::{EngineKind, decode};
use kvasir_engine::normalise::{DropKind, Normalised, Normaliser, NormaliserConfig};
use kvasir_index::{
    ChangeLimits, HolderView, Index, Limits, Match, Query, QueryKey, Restore, Restored, Scratch,
    SourceId,
};
use kvasir_proto::convert::{FindQuery, QueryInput, QueryTokens};
use kvasir_proto::hash::{Namespace, stem};
use kvasir_proto::types::{
    BlockName, CopyMode, Cursor, DpRank, Incarnation, KvEvent, LocalHash, NameChange, PartitionKey,
    Reason, SourceState, SourceStatus, StateReason, Tier, TierSet, WorkerId,
};
use kvasir_tests::image_store::{Loss, StoredImages};
use kvasir_tests::script::ScriptRng;
use rand::SeedableRng;
use router_client::Prompt as ClientPrompt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const WORKER: &str = "w";
const SOURCE: &str = "s";

/// What an answer states of one rank, besides blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    pub state: SourceState,
    pub may_be_high: bool,
    pub reasons: Vec<Reason>,
}

impl Standing {
    pub fn is_exact(&self) -> bool {
        self.state == SourceState::Exact
    }

    /// Whether routers take the answer as it is: blocks may be missing from it, and none are too many.
    pub fn is_trusted(&self) -> bool {
        self.state <= SourceState::Partial && !self.may_be_high
    }
}

/// Blocks of a prompt that one rank holds, according to an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    pub blocks: u32,
    /// None where the answer counts tiers only roughly: blocks that look ahead, in several tiers.
    pub by_tier: Option<[u32; Tier::COUNT]>,
}

/// Decoder, normaliser and index of one worker.
pub struct Subject {
    setup: Setup,
    fault: Fault,
    worker: WorkerId,
    index: Index,
    source: SourceId,
    normaliser: Normaliser,
    images: StoredImages,
    rng: ScriptRng,
    sequence: u64,
    reasons: Vec<StateReason>,
    /// Ranks of batches since the last clear of the source.
    ranks: BTreeSet<DpRank>,
    /// Whether events were lost since the last clear.
    is_lost: bool,
    /// Contents of names, for a subject that lets contradictions replace blocks.
    meanings: BTreeMap<(DpRank, BlockName), (Option<BlockName>, LocalHash)>,
    scratch: Scratch,
}

fn config(setup: &Setup, fault: Fault) -> NormaliserConfig {
    let mut config = NormaliserConfig::new(EngineKind::Vllm, setup.block_size as u32);
    if setup.options.registers_adapter {
        config.lora_names = Arc::new([(3, ADAPTERS[UNNAMED].to_owned())].into());
    }
    if fault == Fault::CopiesAreOne {
        config.copy_mode = CopyMode::Set;
    }
    config
}

fn limits() -> Limits {
    Limits { changes: Some(ChangeLimits::default()), ..Limits::default() }
}

impl Subject {
    pub fn new(setup: Setup, fault: Fault) -> Self {
        let config = config(&setup, fault);
        let worker = WorkerId::new(WORKER).expect("a short name");
        let mut index = Index::new(limits());
        let source = index.add_source(&worker, SOURCE, 0, config.copy_mode).expect("new");
        let mut subject = Self {
            setup,
            fault,
            worker,
            index,
            source,
            normaliser: Normaliser::new(config),
            images: StoredImages::default(),
            rng: ScriptRng::seed_from_u64(1),
            sequence: 0,
            reasons: Vec::new(),
            ranks: BTreeSet::new(),
            is_lost: false,
            meanings: BTreeMap::new(),
            scratch: Scratch::default(),
        };
        subject.report();
        subject
    }

    /// Takes the engine's next batch, as link, driver and writer do.
    pub fn take(&mut self, payload: &[u8]) {
        let mut batch = decode(payload, EngineKind::Vllm).expect("a sound payload");
        self.fault.falsify(&mut batch);
        let normalised = self.normaliser.normalise(batch);
        self.sequence += 1;
        if normalised.events.contains(&KvEvent::Cleared) {
            self.is_lost = false;
        }
        self.is_lost |= normalised.is_lossy();
        let reasons = normalised.reasons();
        let Normalised { rank, events, drops, name_changes, .. } = normalised;
        self.index.change_meanings(self.source, &name_changes);
        self.ranks.insert(rank);
        let is_only = self.ranks.len() == 1 && self.index.feeds_only(self.source, rank);
        if is_only && events.contains(&KvEvent::Cleared) {
            self.reasons.clear();
        }
        for event in &events {
            self.apply(rank, event);
        }
        for (reason, count, example) in reasons {
            let example = example.as_str().into();
            let seen = StateReason { reason, count, example, since: Duration::ZERO };
            StateReason::note(&mut self.reasons, seen);
        }
        if drops.iter().any(|(reason, _)| reason.kind() == DropKind::Rejected) {
            self.index.mark_incomplete(self.source);
        }
        self.report();
    }

    fn apply(&mut self, rank: DpRank, event: &KvEvent) {
        if self.fault == Fault::ContradictionReplaces
            && let KvEvent::Stored { parent, blocks, .. } = event
        {
            let mut parent = *parent;
            for block in blocks {
                let meaning = (parent, block.local);
                let before = self.meanings.insert((rank, block.name), meaning);
                let is_other = before.is_some_and(|before| before != meaning);
                for tier in Tier::ALL.into_iter().filter(|_| is_other) {
                    let gone = KvEvent::Gone { tier, names: vec![block.name] };
                    self.index.apply(self.source, rank, &gone).expect("known");
                }
                parent = Some(block.name);
            }
        }
        self.index.apply(self.source, rank, event).expect("known");
    }

    /// Reports the link's status to the index.
    fn report(&mut self) {
        let state = if self.is_lost { SourceState::Degraded } else { SourceState::Exact };
        let incarnation = Incarnation(1);
        let sequence = self.sequence;
        let status = SourceStatus {
            state,
            connected: true,
            applied: Some(Cursor { incarnation, sequence, fingerprint: None }),
            head: Some(sequence),
            learned: Arc::clone(self.normaliser.learned()),
            reasons: self.reasons.as_slice().into(),
            ..SourceStatus::default()
        };
        self.index.set_status(self.source, status);
    }

    /// A new incarnation of the engine: all that was learned of the old one is forgotten.
    pub fn restart_engine(&mut self) {
        self.normaliser.reset();
        self.index.clear_meanings(self.source);
        self.meanings.clear();
        (self.is_lost, self.sequence) = (false, 0);
        self.reasons.clear();
        self.ranks.clear();
        while !self.index.clear_source(self.source, None, 100).expect("known").done {}
        self.report();
    }

    /// Takes an image, as a checkpoint does.
    pub fn take_image(&mut self) {
        let mut cut = self.index.begin_cut(&self.worker, false).expect("known");
        while !self.index.cut_step(&mut cut, 7).done {}
        self.images.merge(cut.finish().0, Loss::Nothing);
    }

    /// Restarts the index from its images. What the source has shown and what names mean comes back with it, unless the restart
    /// `is_lossy`: then names are forgotten, and the state shows it.
    pub fn restart(&mut self, is_lossy: bool) {
        self.take_image();
        let saved = self.images.saved(&self.worker, &mut self.rng).expect("sound");
        self.index = Index::new(limits());
        let mut restore = Restore::new(saved).expect("sound");
        while !restore.step(&mut self.index, 100).expect("sound").done {}
        let Restored { unplaced, dropped, shed, .. } = restore.restored();
        assert_eq!(unplaced + dropped + shed, 0, "blocks of an image are missing");
        self.images = StoredImages::default();
        let worker = self.index.worker(&self.worker).expect("restored");
        let (source, _, status) = worker.sources().next().expect("restored");
        self.source = source;
        // As the link of a source that resumes.
        self.reasons = status.reasons.to_vec();
        self.ranks.clear();
        let mut learned = (*status.learned).clone();
        let mut names = self.index.meanings(source);
        if is_lossy && !names.is_empty() {
            names.clear();
            learned.forgot_names = true;
            let reason = Reason::ForgottenNames;
            let example = Arc::default();
            let seen = StateReason { reason, count: 1, example, since: Duration::ZERO };
            StateReason::note(&mut self.reasons, seen);
        }
        if self.fault == Fault::RestartForgets {
            names.clear();
        }
        self.normaliser = Normaliser::new(config(&self.setup, self.fault));
        self.index.clear_meanings(source);
        let change = |(rank, name, meaning)| NameChange { rank, name, meaning: Some(meaning) };
        let changes: Vec<_> = names.iter().copied().map(change).collect();
        self.index.change_meanings(source, &changes);
        self.normaliser.resume(learned, names, &self.index.ranks_of(source));
        self.report();
    }

    /// What answers state of a rank. None before a batch has named the rank.
    pub fn standing(&self, rank: DpRank) -> Option<Standing> {
        let holder = self.holder(rank)?;
        let least = if holder.is_partial() { SourceState::Partial } else { SourceState::Exact };
        Some(Standing {
            state: holder.status().state.max(least),
            may_be_high: holder.may_be_high(),
            reasons: holder.reasons().into_iter().map(|at| at.reason).collect(),
        })
    }

    fn holder(&self, rank: DpRank) -> Option<HolderView<'_>> {
        self.index.worker(&self.worker)?.holders().find(|holder| holder.rank() == rank)
    }

    /// Asks for a prompt, by tokens or as the client asks, by hashes.
    pub fn ask(
        &mut self,
        prompt: &Prompt,
        rank: DpRank,
        tiers: TierSet,
        by_hashes: bool,
    ) -> Answer {
        let query = self.query(prompt, tiers, by_hashes);
        let size = self.setup.block_size as u32;
        let mut buffer = Vec::new();
        let locals = query.input.local_hashes(size, &mut buffer).expect("a short prompt");
        let locals = locals.expect("not by names");
        let found = self.find(locals, rank, tiers);
        let is_ahead = locals.first().is_some_and(|&first| self.index.has_first(stem(first)));
        let mut positions = Vec::new();
        if is_ahead && query.look_ahead_positions(size, locals, &mut positions) {
            let held = self.find(&positions, rank, tiers);
            if held.blocks > 0 {
                return blocks_of(&held, positions.len() as u32);
            }
        }
        Answer { blocks: found.blocks, by_tier: Some(found.by_tier) }
    }

    fn find(&mut self, locals: &[LocalHash], rank: DpRank, tiers: TierSet) -> Held {
        let key = QueryKey::Locals(locals);
        let query =
            Query { key, tiers, workers: None, minimum_overlap: 0, shared: None, prompt: None };
        self.index.find(query, &mut self.scratch);
        let is_rank =
            |at: &&Match| self.index.holder(at.holder).is_some_and(|holder| holder.rank() == rank);
        let found = self.scratch.matches().iter().find(is_rank);
        found.map_or(Held::default(), |at| Held { blocks: at.blocks, by_tier: at.by_tier })
    }

    fn query(&self, prompt: &Prompt, tiers: TierSet, by_hashes: bool) -> FindQuery {
        let namespace = Namespace {
            lora_name: prompt.adapter.map_or("", |adapter| ADAPTERS[adapter]),
            cache_salt: prompt.salt.map_or("", |salt| SALTS[salt]),
        };
        let multimodal = prompt.spans(&self.setup);
        let (input, next_tokens) = if by_hashes {
            let client = ClientPrompt {
                namespace,
                multimodal: &multimodal,
                ..ClientPrompt::new("m", self.setup.block_size as u32, &prompt.tokens)
            };
            let hashed = client.hashed();
            let locals = hashed.local_hashes.into_iter().map(LocalHash).collect();
            (QueryInput::Locals(locals), Some(hashed.next_tokens))
        } else {
            let tokens = QueryTokens::Numbers(prompt.tokens.clone());
            (QueryInput::Tokens { tokens, seed: namespace.seed(), multimodal }, None)
        };
        FindQuery {
            partition: PartitionKey::new("m", "").expect("a short name"),
            block_size: None,
            input,
            tiers,
            workers: None,
            minimum_overlap_blocks: 1,
            top_k: None,
            shared: false,
            next_tokens,
            explain: false,
            prompt_tokens: None,
        }
    }

    /// Checks the index itself.
    pub fn validate(&self) -> Result<(), String> {
        self.index.validate()
    }
}

/// Leading positions that a rank holds.
#[derive(Default)]
struct Held {
    blocks: u32,
    by_tier: [u32; Tier::COUNT],
}

/// Blocks of a look-ahead worker that holds these leading positions of so many, as the server counts them.
fn blocks_of(held: &Held, positions: u32) -> Answer {
    let ends_with_stem = held.blocks == positions && positions % 2 == 1;
    let half = |count: u32| if ends_with_stem { count.div_ceil(2) } else { count / 2 };
    let blocks = half(held.blocks);
    let is_in_one_tier = held.by_tier.iter().filter(|count| **count > 0).count() == 1;
    let by_tier = held.by_tier.map(|count| half(count).min(blocks));
    Answer { blocks, by_tier: Some(by_tier).filter(|_| is_in_one_tier) }
}
