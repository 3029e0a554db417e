//! Converts chunk sizes of connectors from media to tiers: registrations state media, but the index stores
//! blocks by tier.

use super::drops::StatedBlockSize;
use super::place::Location;
use kvasir_proto::limits::{CONNECTOR_CHUNK_BLOCKS_MAX, CONNECTOR_CHUNK_BLOCKS_MIN};
use kvasir_proto::types::Tier;

/// Why chunk sizes are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// The medium is unknown, or is a store that workers share.
    #[error(
        "{medium:?} is not a medium of a worker's own memory: use one that connectors announce, such as CPU or DISK"
    )]
    Medium {
        /// The medium.
        medium: String,
    },
    /// The medium is the engine's own memory.
    #[error(
        "{medium:?} is the engine's own memory, where each block counts: use the connector's medium, such as CPU or DISK"
    )]
    Device {
        /// The medium.
        medium: String,
    },
    /// Two media of one tier have different chunk sizes.
    #[error("{first:?} and {second:?} are one tier: give both the same number of blocks")]
    Differ {
        /// A medium.
        first: String,
        /// The other medium.
        second: String,
    },
}

/// Converts blocks per chunk from media to tiers. 0 means a tier without chunks.
///
/// # Errors
/// If a medium is not a connector's, or two media of one tier have different sizes.
pub fn chunk_sizes<'a>(
    chunks: impl IntoIterator<Item = (&'a String, &'a u32)>,
) -> Result<[u32; Tier::COUNT], ChunkError> {
    let mut sizes = [0; Tier::COUNT];
    let mut media: [Option<&String>; Tier::COUNT] = [None; Tier::COUNT];
    for (medium, &blocks) in chunks {
        let tier = match Location::of_medium(Some(medium)) {
            Ok(Location::Worker(Tier::Device)) => {
                return Err(ChunkError::Device { medium: medium.clone() });
            }
            Ok(Location::Worker(tier)) => tier,
            Ok(Location::Pool) | Err(_) => {
                return Err(ChunkError::Medium { medium: medium.clone() });
            }
        };
        let (Some(size), Some(of)) = (sizes.get_mut(tier.index()), media.get_mut(tier.index()))
        else {
            continue;
        };
        if let Some(first) = *of
            && *size != blocks
        {
            let first = first.clone();
            let second = medium.clone();
            return Err(ChunkError::Differ { first, second });
        }
        *size = blocks;
        *of = Some(medium);
    }
    Ok(sizes)
}

impl StatedBlockSize {
    /// Whether this is the size of the engine's own blocks, rather than of a connector's chunks.
    #[must_use]
    pub fn is_of_device(&self) -> bool {
        Location::of_medium(Some(&self.medium)) == Ok(Location::Worker(Tier::Device))
    }

    /// Number of blocks of `block_size` tokens in a chunk of this size, if a registration can state such
    /// chunks.
    #[must_use]
    pub fn chunk_blocks(&self, block_size: u32) -> Option<u32> {
        let is_connector = matches!(
            Location::of_medium(Some(&self.medium)),
            Ok(Location::Worker(tier)) if tier != Tier::Device
        );
        let block_size = u64::from(block_size);
        let blocks = self.tokens.checked_div(block_size)?;
        let blocks =
            u32::try_from(blocks).ok().filter(|_| self.tokens.is_multiple_of(block_size))?;
        let limits = CONNECTOR_CHUNK_BLOCKS_MIN..=CONNECTOR_CHUNK_BLOCKS_MAX;
        Some(blocks).filter(|blocks| is_connector && limits.contains(blocks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(chunks: &[(&str, u32)]) -> Result<[u32; Tier::COUNT], String> {
        let chunks: Vec<_> = chunks.iter().map(|&(at, blocks)| (at.to_owned(), blocks)).collect();
        let chunks = chunks.iter().map(|(medium, blocks)| (medium, blocks));
        chunk_sizes(chunks).map_err(|error| error.to_string())
    }

    #[test]
    fn sizes_by_medium_give_sizes_by_tier() {
        assert_eq!(sizes(&[]), Ok([0, 0, 0]));
        assert_eq!(sizes(&[("cpu", 4), ("NVME", 16)]), Ok([0, 4, 16]));
        assert_eq!(sizes(&[("CPU", 4), ("CPU_PINNED", 4)]), Ok([0, 4, 0]));
        let refused = |chunks: &[(&str, u32)], expected: &str| {
            let error = sizes(chunks).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        };
        refused(&[("CLOUD", 4)], "\"CLOUD\" is not a medium of a worker's own memory");
        refused(&[("EXTERNAL", 4)], "\"EXTERNAL\" is not a medium");
        refused(&[("GPU", 4)], "\"GPU\" is the engine's own memory");
        refused(&[("CPU", 4), ("CPU_TIER1", 8)], "\"CPU\" and \"CPU_TIER1\" are one tier: ");
    }

    #[test]
    fn a_size_that_a_registration_can_state_is_proposed() {
        let stated = |tokens, medium: &str| StatedBlockSize { tokens, medium: medium.into() };
        assert_eq!(stated(256, "cpu").chunk_blocks(16), Some(16));
        assert_eq!(stated(256, "cpu").chunk_blocks(1), Some(256));
        for (tokens, medium, block_size) in [
            (256, "cpu", 0),
            (257, "cpu", 16),
            (16, "cpu", 16),
            (32, "GPU", 16),
            (32, "EXTERNAL", 16),
        ] {
            let stated = stated(tokens, medium);
            assert_eq!(stated.chunk_blocks(block_size), None, "{stated:?} {block_size}");
        }
        assert!(stated(32, "").is_of_device() && !stated(32, "disk").is_of_device());
    }
}
