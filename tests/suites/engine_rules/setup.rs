//! What one engine is like: its release, its connector and its options.

use kvasir_tests::script::ScriptRng;
use rand::Rng;
use rand::seq::IndexedRandom;

/// Most blocks of a prompt.
pub const PROMPT_BLOCKS_MAX: usize = 7;

/// Layout of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Arrays of vLLM 0.17 to 0.19: the keys come last.
    ShortArray,
    /// Arrays of vLLM 0.20 to 0.23, with group and kind.
    LongArray,
    /// Maps, from vLLM 0.24.
    Map,
}

/// How an engine states the images of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageForm {
    /// Bare identifiers, until vLLM 0.18.1.
    Bare,
    /// Pairs of an identifier and an offset.
    Pairs,
}

/// Groups of layers that are cached alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Groups {
    /// Events state no group.
    Unstated,
    /// Full attention only.
    Main,
    /// Full attention is group 0, sliding window group 1.
    MainFirst,
    /// Sliding window is group 0, full attention group 1.
    WindowFirst,
}

/// What a connector's stored events contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// Names only.
    Names,
    /// Tokens and adapter, and never keys.
    Tokens,
    /// Everything that the engine's own events contain.
    Keys,
}

/// A connector that stores blocks in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connector {
    pub offload: Offload,
    pub host_blocks: usize,
    /// Whether it announces blocks when the device may have evicted them already.
    pub is_late: bool,
    /// Whether it now and then states an earlier block as the parent, as vllm-ascend does.
    pub skips_parents: bool,
    /// Whether its events state the main group.
    pub states_group: bool,
}

/// One engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    pub block_size: usize,
    pub form: Form,
    pub image_form: ImageForm,
    /// Whether identifiers of images are digests of 64 digits, as vLLM makes them.
    pub has_digests: bool,
    pub groups: Groups,
    pub device_blocks: usize,
    pub connector: Option<Connector>,
    pub ranks: u32,
    pub options: Options,
}

/// What happens at an engine besides plain requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "options, each drawn by itself")]
pub struct Options {
    /// Whether hashes cover the next token.
    pub looks_ahead: bool,
    /// Whether removals state how many copies remain.
    pub counts_copies: bool,
    pub salts: bool,
    pub adapters: bool,
    /// Whether adapters are replaced under the same name.
    pub replaces_adapters: bool,
    /// Whether an adapter has a number only.
    pub has_unnamed_adapter: bool,
    /// Whether the registration states that adapter's name.
    pub registers_adapter: bool,
    pub images: bool,
    pub embeddings: bool,
    pub moves: bool,
    /// Whether some events are of kinds that are not known, or cannot be read.
    pub is_odd: bool,
    pub lossy_restarts: bool,
}

impl Setup {
    pub fn draw(rng: &mut ScriptRng) -> Self {
        let form = *[Form::Map, Form::Map, Form::ShortArray, Form::LongArray]
            .choose(rng)
            .expect("not empty");
        let is_bare = form == Form::ShortArray && rng.random_bool(0.5);
        let options = Options {
            looks_ahead: form == Form::Map && rng.random_bool(0.3),
            counts_copies: form == Form::Map && rng.random_bool(0.15),
            salts: rng.random_bool(0.6),
            adapters: rng.random_bool(0.4),
            replaces_adapters: rng.random_bool(0.4),
            has_unnamed_adapter: rng.random_bool(0.1),
            registers_adapter: rng.random_bool(0.5),
            images: rng.random_bool(0.4),
            embeddings: rng.random_bool(0.08),
            moves: rng.random_bool(0.3),
            is_odd: rng.random_bool(0.1),
            lossy_restarts: rng.random_bool(0.15),
        };
        let groups = match form {
            Form::ShortArray => Groups::Unstated,
            Form::LongArray | Form::Map => {
                [Groups::Unstated, Groups::Main, Groups::MainFirst, Groups::WindowFirst]
                    [rng.random_range(0..4)]
            }
        };
        let connector = rng.random_bool(0.6).then(|| Connector::draw(rng));
        // Little room, so that blocks are evicted before they are announced.
        let is_late = connector.is_some_and(|at| at.is_late);
        let most = if is_late { PROMPT_BLOCKS_MAX + 3 } else { 3 * PROMPT_BLOCKS_MAX };
        Self {
            block_size: rng.random_range(2..=4),
            form,
            image_form: if is_bare { ImageForm::Bare } else { ImageForm::Pairs },
            has_digests: rng.random_bool(0.7),
            groups,
            device_blocks: rng.random_range(PROMPT_BLOCKS_MAX + 1..=most),
            connector,
            ranks: if rng.random_bool(0.25) { 2 } else { 1 },
            options: Options { moves: options.moves && !options.counts_copies, ..options },
        }
    }

    /// Number of the main group, where events state it.
    pub const fn main_group(&self) -> Option<u32> {
        match self.groups {
            Groups::Unstated => None,
            Groups::Main | Groups::MainFirst => Some(0),
            Groups::WindowFirst => Some(1),
        }
    }

    /// Number of the group with a sliding window, if there is one.
    pub const fn window_group(&self) -> Option<u32> {
        match self.groups {
            Groups::Unstated | Groups::Main => None,
            Groups::MainFirst => Some(1),
            Groups::WindowFirst => Some(0),
        }
    }

    /// Whether blocks of a replaced adapter may stay in answers that are called partial: a late connector announces names
    /// whose meaning is not known yet, and the last eviction that counts for the meaning leaves a copy in host memory.
    pub fn may_keep_replaced(&self) -> bool {
        let is_late = self.connector.is_some_and(|at| at.is_late);
        is_late && self.options.adapters && self.options.replaces_adapters
    }

    /// Whether events contain all that an exact index needs: whatever the engine can reuse must be in the answers.
    pub fn states_everything(&self) -> bool {
        // A short bare identifier reads like a salt, and blocks that were evicted before they are announced have no
        // position.
        let is_ambiguous = self.image_form == ImageForm::Bare && !self.has_digests;
        !is_ambiguous && self.connector.is_none_or(|at| !at.is_late)
    }
}

impl Connector {
    fn draw(rng: &mut ScriptRng) -> Self {
        let all = [Offload::Names, Offload::Tokens, Offload::Tokens, Offload::Keys];
        let offload = *all.choose(rng).expect("not empty");
        Self {
            offload,
            host_blocks: rng.random_range(3..=3 * PROMPT_BLOCKS_MAX),
            is_late: rng.random_bool(0.3),
            skips_parents: offload == Offload::Keys && rng.random_bool(0.3),
            states_group: rng.random_bool(0.5),
        }
    }
}
