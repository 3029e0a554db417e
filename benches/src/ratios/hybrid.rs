//! Models with several KV-cache groups, beside full attention alone: lookups of the same depth, and stores of as many
//! blocks.

use super::cases::Case;
use super::fleet::{EVENT_BLOCKS, PROMPT_BLOCKS, PROMPTS, Turns, locals};
use crate::events::{blocks_of, stored};
use bench_figures::random::mixed;
use kvasir_index::{Index, Limits, Prompt, Query, QueryKey, Scratch, SourceId};
use kvasir_proto::types::{
    BlockName, CopyMode, Group, GroupKind, KvEvent, StoredBlock, Tier, TierSet, WorkerId,
};
use std::cell::RefCell;
use std::rc::Rc;

/// A model: the tokens of a block of its main group, and its further groups.
struct Model {
    lookup: &'static str,
    store: &'static str,
    block_size: u32,
    groups: Vec<Group>,
}

const fn group(number: u32, kind: GroupKind, block_size: u32, window: u32) -> Group {
    Group { number, kind, block_size, unit: block_size, window }
}

fn models() -> [Model; 3] {
    use GroupKind::{Mamba, Window};
    [
        Model {
            lookup: "hybrid-window-lookup-512",
            store: "hybrid-window-store-512",
            block_size: 16,
            groups: vec![group(1, Window, 16, 128)],
        },
        Model {
            lookup: "hybrid-states-lookup-512",
            store: "hybrid-states-store-512",
            block_size: 16,
            groups: (1..=3).map(|number| group(number, Mamba, 16, 0)).collect(),
        },
        // DeepSeek V4's sizes.
        Model {
            lookup: "hybrid-v4-lookup-512",
            store: "hybrid-v4-store-512",
            block_size: 256,
            groups: vec![
                group(1, Window, 64, 128),
                group(2, Window, 4, 8),
                group(3, Window, 8, 128),
            ],
        },
    ]
}

/// All cases.
pub fn cases() -> Vec<Case> {
    models().into_iter().flat_map(|model| [lookup(&model), store(&model)]).collect()
}

/// An index with one worker that has all prompts, in full attention and in `groups`.
struct One {
    index: Index,
    source: SourceId,
}

impl One {
    #[expect(clippy::expect_used, reason = "names are valid and the index has room")]
    fn build(groups: &[Group], main_block: u32) -> Self {
        let mut index = Index::new(Limits::default());
        let worker = WorkerId::new("worker").expect("a name");
        let source =
            index.add_source(&worker, "source", 0, CopyMode::Counted).expect("room for a source");
        let mut one = Self { index, source };
        for group in groups {
            one.apply(&at_root(vec![group.declaration()]));
        }
        for prompt in 0..PROMPTS {
            let blocks = blocks_of(&locals(prompt));
            stored(&blocks, EVENT_BLOCKS).iter().for_each(|event| one.apply(event));
            for group in groups {
                one.apply(&at_root(of_group(*group, main_block, &blocks)));
            }
        }
        one
    }

    #[expect(clippy::expect_used, reason = "the source is in the index")]
    fn apply(&mut self, event: &KvEvent) {
        self.index.apply(self.source, 0, event).expect("a known source");
    }
}

const fn at_root(blocks: Vec<StoredBlock>) -> KvEvent {
    KvEvent::Stored { parent: None, tier: Tier::Device, blocks }
}

/// The blocks of a further group for a prompt. Smaller blocks than the main group's are kept before its end only, where
/// the prompt can be resumed.
fn of_group(group: Group, main_block: u32, blocks: &[StoredBlock]) -> Vec<StoredBlock> {
    let named = |name| Group::block(group.number, name);
    if group.block_size >= main_block {
        return blocks.iter().map(|block| named(block.name)).collect();
    }
    let Some(last) = blocks.last() else { return Vec::new() };
    let between = group.window.saturating_sub(1).div_ceil(group.block_size).saturating_sub(1);
    let before = (0..between).map(|at| BlockName(mixed(last.name.0 ^ u64::from(at))));
    before.chain([last.name]).map(named).collect()
}

/// Looks up prompts of 512 blocks, a different one each time.
fn lookups(index: One, block_size: u32) -> Box<dyn FnMut()> {
    let mut scratch = Scratch::default();
    let mut turns = Turns::new(PROMPT_BLOCKS);
    let tokens = u32::try_from(PROMPT_BLOCKS).ok().map(|blocks| blocks * block_size + 1);
    Box::new(move || {
        let query = Query {
            key: QueryKey::Locals(turns.next_prompt()),
            tiers: TierSet::ALL,
            workers: None,
            minimum_overlap: 1,
            shared: None,
            prompt: Some(Prompt { block_size, tokens }),
        };
        index.index.find(query, &mut scratch);
        let blocks = scratch.matches().first().map(|found| found.blocks as usize);
        assert_eq!(blocks, Some(PROMPT_BLOCKS), "every group serves the prompt");
    })
}

fn lookup(model: &Model) -> Case {
    let operation = lookups(One::build(&model.groups, model.block_size), model.block_size);
    let yardstick = lookups(One::build(&[], model.block_size), model.block_size);
    Case { name: model.lookup, against: "full attention alone", operation, yardstick }
}

/// Stores and removes blocks of the main group, 512 at a time.
fn main_changes(one: &Rc<RefCell<One>>) -> Box<dyn FnMut()> {
    let one = Rc::clone(one);
    let mut prompt = PROMPTS;
    Box::new(move || {
        prompt += 1;
        let blocks = blocks_of(&locals(prompt));
        let names = blocks.iter().rev().map(|block| block.name).collect();
        let mut one = one.borrow_mut();
        one.apply(&at_root(blocks));
        one.apply(&KvEvent::Removed { tier: Tier::Device, names });
    })
}

/// Removes and stores as many blocks of a further group, of prompts that the main group has. If the group's blocks are
/// smaller, they have names of their own: then stores and removes new ones.
fn changes(one: &Rc<RefCell<One>>, group: Group, main_block: u32) -> Box<dyn FnMut()> {
    let one = Rc::clone(one);
    let is_new = group.block_size < main_block;
    let mut turn = (0..PROMPTS).cycle();
    Box::new(move || {
        let prompt = turn.next().unwrap_or(0) + if is_new { PROMPTS } else { 0 };
        let mut blocks = blocks_of(&locals(prompt));
        blocks.iter_mut().for_each(|block| *block = Group::block(group.number, block.name));
        let names = blocks.iter().rev().map(|block| block.name).collect();
        let mut events = [at_root(blocks), KvEvent::Removed { tier: Tier::Device, names }];
        if !is_new {
            events.reverse();
        }
        let mut one = one.borrow_mut();
        events.iter().for_each(|event| one.apply(event));
    })
}

fn store(model: &Model) -> Case {
    let one = Rc::new(RefCell::new(One::build(&model.groups, model.block_size)));
    let yardstick = main_changes(&one);
    let operation = match model.groups.first() {
        Some(group) => changes(&one, *group, model.block_size),
        None => main_changes(&one),
    };
    Case { name: model.store, against: "as many blocks of the main group", operation, yardstick }
}
