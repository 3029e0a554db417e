use super::{BlockName, LocalHash, StoredBlock};

/// What a KV-cache group keeps of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GroupKind {
    /// All blocks from the start of the prompt: full attention of any kind.
    Full,
    /// The blocks of the last tokens: sliding-window attention.
    Window,
    /// The blocks from the start of the last chunk of tokens: chunked local attention.
    Chunked,
    /// One state at the end of the prompt: Mamba and other state-space layers.
    Mamba,
}

impl GroupKind {
    /// The kind that vLLM 0.33 names so in `kv_cache_spec_kind`. `None` for a name that is unknown here.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        const KINDS: [(&str, GroupKind); 7] = [
            ("full_attention", GroupKind::Full),
            ("mla_attention", GroupKind::Full),
            ("sink_full_attention", GroupKind::Full),
            ("sliding_window", GroupKind::Window),
            ("sliding_window_mla", GroupKind::Window),
            ("chunked_local_attention", GroupKind::Chunked),
            ("mamba", GroupKind::Mamba),
        ];
        let known = KINDS.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        known.map(|(_, kind)| kind)
    }

    /// Number of the kind in stored messages, from 0.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Full => 0,
            Self::Window => 1,
            Self::Chunked => 2,
            Self::Mamba => 3,
        }
    }

    /// The kind with a number; `None` above 3.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Full),
            1 => Some(Self::Window),
            2 => Some(Self::Chunked),
            3 => Some(Self::Mamba),
            _ => None,
        }
    }
}

/// A KV-cache group besides the main group, as the engine's events describe it.
///
/// The blocks of such a *further group* travel through journals, dumps, digests and checkpoints like other blocks
/// ([`Group::block`]). They have no chain: their local hash contains the group's number. The engine's name of a block is
/// the same in all groups and gives the position in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    /// Number of the group at the engine, less than [`Group::NUMBERS`].
    pub number: u32,
    /// What the group keeps of a prompt.
    pub kind: GroupKind,
    /// Tokens of the largest announced block, 1 to 65,536.
    pub block_size: u32,
    /// Greatest common divisor of the tokens of all announced blocks. Smaller than `block_size` if the engine announces
    /// parts of blocks.
    pub unit: u32,
    /// Tokens of the window, below 2^30; 0 for other kinds.
    pub window: u32,
}

/// Upper 56 bits of the local hash of a further group's block ("kvgroup"). Other blocks have it by chance with
/// probability 2^-56.
const BLOCK_MARK: u64 = 0x6b76_6772_6f75_7000;
/// Upper 56 bits of the local hash of a group's declaration ("kvdecla").
const DECLARATION_MARK: u64 = 0x6b76_6465_636c_6100;
const NUMBER_BITS: u64 = 0xff;

impl Group {
    /// Group numbers are less than this.
    pub const NUMBERS: u32 = 256;
    /// Windows are smaller than this number of tokens.
    pub const WINDOW_MAX: u32 = 1 << 30;

    /// The block under an engine's name in group `number`.
    #[must_use]
    pub const fn block(number: u32, name: BlockName) -> StoredBlock {
        let local = LocalHash(BLOCK_MARK | number as u64 & NUMBER_BITS);
        StoredBlock { name: Self::name(number, name), local }
    }

    /// Name under which an engine's block is known in group `number`. Applied twice, it returns the engine's name.
    #[must_use]
    pub const fn name(number: u32, name: BlockName) -> BlockName {
        BlockName(name.0 ^ mask(number))
    }

    /// Whether a local hash belongs to a further group, instead of a prompt's content.
    #[must_use]
    pub const fn is_mark(local: LocalHash) -> bool {
        let mark = local.0 & !NUMBER_BITS;
        mark == BLOCK_MARK || mark == DECLARATION_MARK
    }

    /// Number of the group whose block has this local hash; `None` for declarations and other blocks.
    #[must_use]
    pub fn number_of(local: LocalHash) -> Option<u8> {
        let is_block = local.0 & !NUMBER_BITS == BLOCK_MARK;
        u8::try_from(local.0 & NUMBER_BITS).ok().filter(|_| is_block)
    }

    /// The block that declares the group: its name contains the fields of the group.
    #[must_use]
    pub const fn declaration(self) -> StoredBlock {
        let facts = (self.kind.number() as u64) << 62
            | (self.block_size.saturating_sub(1) as u64 & 0xffff) << 46
            | (self.unit.saturating_sub(1) as u64 & 0xffff) << 30
            | (self.window & (Self::WINDOW_MAX - 1)) as u64;
        let local = LocalHash(DECLARATION_MARK | self.number as u64 & NUMBER_BITS);
        StoredBlock { name: BlockName(facts ^ mask(self.number)), local }
    }

    /// The group that a block declares; `None` for any other block.
    #[must_use]
    pub fn of_declaration(block: StoredBlock) -> Option<Self> {
        if block.local.0 & !NUMBER_BITS != DECLARATION_MARK {
            return None;
        }
        let number = u32::try_from(block.local.0 & NUMBER_BITS).ok()?;
        let facts = block.name.0 ^ mask(number);
        let field = |shift: u32, bits: u64| u32::try_from(facts >> shift & bits).ok();
        Some(Self {
            number,
            kind: GroupKind::from_number(field(62, 3)?)?,
            block_size: field(46, 0xffff)? + 1,
            unit: field(30, 0xffff)? + 1,
            window: field(0, u64::from(Self::WINDOW_MAX - 1))?,
        })
    }
}

/// Bits by which a group's names differ from the engine's names.
const fn mask(number: u32) -> u64 {
    (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_return_the_group() {
        for number in [0, 1, 255] {
            for kind in (0..4).filter_map(GroupKind::from_number) {
                for (block_size, unit, window) in [(1, 1, 0), (65_536, 16, (1 << 30) - 1)] {
                    let group = Group { number, kind, block_size, unit, window };
                    let block = group.declaration();
                    assert_eq!(Group::of_declaration(block), Some(group));
                    assert!(Group::is_mark(block.local));
                    assert_eq!(Group::number_of(block.local), None);
                }
            }
        }
        let block = Group::block(3, BlockName(7));
        assert!(Group::is_mark(block.local));
        assert_eq!(Group::of_declaration(block), None);
        assert_eq!(Group::number_of(block.local), Some(3));
        assert_eq!(Group::number_of(LocalHash(7)), None);
        assert_eq!(Group::name(3, block.name), BlockName(7));
        assert_ne!(Group::block(4, BlockName(7)).name, block.name);
        assert!(!Group::is_mark(LocalHash(7)));
    }

    #[test]
    fn kinds_of_vllm_are_known() {
        assert_eq!(GroupKind::of_name("SLIDING_WINDOW_MLA"), Some(GroupKind::Window));
        assert_eq!(GroupKind::of_name("mamba"), Some(GroupKind::Mamba));
        assert_eq!(GroupKind::of_name("cross_attention"), None);
    }
}
