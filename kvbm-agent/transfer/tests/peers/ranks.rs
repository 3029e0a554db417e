//! Ranks with a part of each block, and their bytes, computed element by element without a plan.

use crate::place::{Memory, description, manager_of};
use kvasir_blocks::layout::LayerOrder;
use kvasir_blocks::sets::TensorParallel;
use kvasir_blocks::{BlockIdentity, LayoutConfig, LayoutForm};
use kvasir_tiers::manager::KvBlockManager;
use kvasir_transfer::BlockDescription;
use kvasir_transfer::wire::form_number;
use std::sync::Arc;

pub const CONTIGUOUS: LayoutForm = LayoutForm::FullyContiguous;
pub const BY_LAYER: LayoutForm = LayoutForm::LayerSeparate(LayerOrder::BlockContiguous);
pub const BY_OUTER: LayoutForm = LayoutForm::LayerSeparate(LayerOrder::OuterContiguous);

/// Description of one rank's blocks.
#[derive(Debug, Clone, Copy)]
pub struct Rank {
    pub form: LayoutForm,
    pub config: LayoutConfig,
    pub parallel: TensorParallel,
}

impl Rank {
    /// One of `size` ranks that together have 16 elements of 2 bytes per token, in 3 layers of keys and values.
    pub fn of(rank: u32, size: u32, form: LayoutForm) -> Self {
        let config = LayoutConfig {
            num_blocks: 1,
            num_layers: 3,
            outer_dim: 2,
            page_size: 4,
            inner_dim: 16 / size,
            dtype_width_bytes: 2,
            alignment_bytes: if form == CONTIGUOUS { 1 } else { 64 },
            base_offset_bytes: 0,
        };
        Self { form, config, parallel: TensorParallel { rank, size, replicas: 1 } }
    }

    pub fn description(&self) -> BlockDescription {
        BlockDescription {
            block_size: self.config.page_size,
            layers: self.config.num_layers,
            outer_dim: self.config.outer_dim,
            inner_dim: self.config.inner_dim,
            dtype_width_bytes: self.config.dtype_width_bytes,
            form: form_number(self.form),
            alignment_bytes: self.config.alignment_bytes,
            tp_rank: self.parallel.rank,
            tp_size: self.parallel.size,
            tp_replicas: self.parallel.replicas,
            ..description(self.bytes())
        }
    }

    pub fn manager(&self, memory: Memory, slots: u32) -> Arc<KvBlockManager> {
        manager_of(memory, self.form, self.config, slots)
    }

    pub fn bytes(&self) -> usize {
        self.bytes_from(0).len()
    }

    /// The bytes of the rank's part of a block.
    pub fn bytes_of(&self, block: &BlockIdentity) -> Vec<u8> {
        self.bytes_from(block.sequence.0)
    }

    fn bytes_from(&self, seed: u64) -> Vec<u8> {
        let LayoutConfig { num_layers, outer_dim, page_size, .. } = self.config;
        let mut bytes = Vec::new();
        let pad = |bytes: &mut Vec<u8>| {
            while !bytes.len().is_multiple_of(self.config.alignment_bytes as usize) {
                bytes.push(0);
            }
        };
        for layer in 0..num_layers {
            for outer in 0..outer_dim {
                for token in 0..page_size {
                    bytes.extend(self.token(seed, [layer, outer, token]));
                }
                if self.form == BY_OUTER {
                    pad(&mut bytes);
                }
            }
            if self.form == BY_LAYER {
                pad(&mut bytes);
            }
        }
        bytes
    }

    fn token(&self, seed: u64, [layer, outer, token]: [u32; 3]) -> Vec<u8> {
        let LayoutConfig { inner_dim, dtype_width_bytes, .. } = self.config;
        let first = self.parallel.rank / self.parallel.replicas * inner_dim;
        let elements = first..first + inner_dim;
        let of = |element| (0..dtype_width_bytes).map(move |byte| (element, byte));
        let places = elements.flat_map(of);
        places.map(|(element, byte)| content(seed, [layer, outer, token, element, byte])).collect()
    }
}

/// The expected byte at a position of a block, independent of the rank.
fn content(seed: u64, what: [u32; 5]) -> u8 {
    let mix = |state: u64, at: u32| {
        (state ^ u64::from(at)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23)
    };
    (what.into_iter().fold(seed | 1, mix) >> 40) as u8
}
