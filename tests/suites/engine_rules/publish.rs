//! Stored events: what engine and connector state of blocks.

use crate::chain::{Block, Name};
use crate::prompt::{ADAPTERS, Image, SALTS, UNNAMED};
use crate::setup::{Connector, ImageForm, Offload, Setup};
use crate::wire::{Event, Key, StatedKeys, Stored};
use kvasir_proto::types::Tier;
use kvasir_tests::script::ScriptRng;
use rand::Rng;

const MAIN_KIND: &str = "full_attention";
const WINDOW_KIND: &str = "sliding_window";

/// The engine's own event: consecutive blocks on the device, after `parent`.
pub fn stored(setup: &Setup, parent: Option<Name>, blocks: &[Block], number: u64) -> Stored {
    let adapter = blocks.first().and_then(|block| block.content.keys.adapter);
    let adapter = adapter.map(|loaded| loaded.adapter);
    let next = |block: &Block| block.content.next.map_or(0, |next| next.token);
    let keys = blocks.iter().map(|block| keys(setup, block, number)).collect();
    let group = setup.main_group();
    Stored {
        tier: Tier::Device,
        group,
        kind: group.map(|_| MAIN_KIND),
        names: blocks.iter().map(|block| block.name).collect(),
        parent,
        tokens: blocks.iter().flat_map(|block| block.content.tokens.clone()).collect(),
        lora_id: adapter.map(|_| number),
        lora_name: adapter.filter(|&adapter| adapter != UNNAMED).map(|at| ADAPTERS[at]),
        keys: StatedKeys::ByBlock(keys),
        look_ahead: setup.options.looks_ahead.then(|| blocks.iter().map(next).collect()),
    }
}

/// `extra_keys` of one block, in vLLM's order.
fn keys(setup: &Setup, block: &Block, number: u64) -> Vec<Key> {
    let keys = &block.content.keys;
    let mut stated = Vec::new();
    if let Some(loaded) = keys.adapter {
        let is_unnamed = loaded.adapter == UNNAMED;
        let name = || Key::Text(ADAPTERS[loaded.adapter].to_owned());
        stated.push(if is_unnamed { Key::Number(number) } else { name() });
    }
    let image = |id, offset| {
        let identifier = Image::identifier(id, setup.has_digests);
        match setup.image_form {
            ImageForm::Bare => Key::Text(identifier),
            ImageForm::Pairs => Key::Item(identifier, offset),
        }
    };
    stated.extend(keys.images.iter().map(|&(id, offset)| image(id, offset)));
    if let Some(id) = block.content.next.and_then(|next| next.image) {
        stated.push(image(id, setup.block_size as i64));
    }
    stated.extend(keys.salt.map(|salt| Key::Text(SALTS[salt].to_owned())));
    stated.extend(keys.embeddings.map(Key::Bytes));
    stated
}

/// What a connector states of blocks that it has stored in host memory.
pub fn by_connector(
    setup: &Setup,
    connector: Connector,
    stored: Stored,
    rng: &mut ScriptRng,
) -> Event {
    let group = setup.main_group().filter(|_| connector.states_group);
    let stored = Stored { tier: Tier::Host, group, kind: None, ..stored };
    let absent = if rng.random_bool(0.5) { StatedKeys::Absent } else { StatedKeys::Nil };
    Event::Stored(match connector.offload {
        Offload::Keys => stored,
        // The connector's hashes are the engine's; it sends no look-ahead tokens.
        Offload::Tokens => Stored {
            keys: absent,
            look_ahead: None,
            lora_id: stored.lora_id.filter(|_| rng.random_bool(0.5)),
            ..stored
        },
        Offload::Names => Stored {
            keys: absent,
            look_ahead: None,
            parent: None,
            tokens: Vec::new(),
            lora_id: None,
            lora_name: None,
            ..stored
        },
    })
}

/// The same blocks are stored in the group with a sliding window, which evicts them on its own.
pub fn in_window(
    setup: &Setup,
    window: &mut Vec<Name>,
    stored: &Stored,
    rng: &mut ScriptRng,
    events: &mut Vec<Event>,
) {
    let group = setup.window_group();
    window.extend(&stored.names);
    events.push(Event::Stored(Stored { group, kind: Some(WINDOW_KIND), ..stored.clone() }));
    while window.len() > setup.device_blocks {
        let name = window.remove(rng.random_range(0..window.len()));
        let tier = Tier::Device;
        let names = vec![name];
        events.push(Event::Removed { tier, group, names, remaining: None });
    }
}
