//! Describes the meaning and layout of an agent's blocks, for comparison with a peer.

use super::error::WireError;
use super::rank::RankBlock;
use crate::limits::NAME_BYTES_MAX;
use kvasir_blocks::LayoutConfig;
use kvasir_blocks::sets::TensorParallel;
use std::fmt;

/// Description of an agent's blocks. The first eleven fields identify the blocks. The split of heads among ranks and
/// the layout of a block's parts may differ between two agents.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BlockDescription {
    /// The model, 1 to 256 bytes.
    #[prost(string, tag = "1")]
    pub model: String,
    /// The model's tenant, up to 256 bytes.
    #[prost(string, tag = "2")]
    pub tenant: String,
    /// Scheme for computing hashes from tokens.
    #[prost(string, tag = "3")]
    pub hash_scheme: String,
    /// Tokens of a block.
    #[prost(uint32, tag = "4")]
    pub block_size: u32,
    /// Bytes of a block, padding included.
    #[prost(uint64, tag = "5")]
    pub block_bytes: u64,
    /// The element type, as named by the operator.
    #[prost(string, tag = "6")]
    pub dtype: String,
    /// Further properties that distinguish blocks, as named by the operator.
    #[prost(string, tag = "7")]
    pub layout: String,
    /// Number of layers. 0 if only the bytes are known; then all following fields are 0, too.
    #[prost(uint32, tag = "8")]
    pub layers: u32,
    /// 2 if keys and values are separate, else 1.
    #[prost(uint32, tag = "9")]
    pub outer_dim: u32,
    /// Elements of this rank per token, layer and outer index.
    #[prost(uint32, tag = "10")]
    pub inner_dim: u32,
    /// Bytes of an element.
    #[prost(uint32, tag = "11")]
    pub dtype_width_bytes: u32,
    /// Form of the layout: 0 contiguous, 1 separate layers, 2 separate layers with separate keys and values.
    #[prost(uint32, tag = "12")]
    pub form: u32,
    /// Alignment of separate layers, in bytes; 1 for none.
    #[prost(uint64, tag = "13")]
    pub alignment_bytes: u64,
    /// Tensor-parallel rank.
    #[prost(uint32, tag = "14")]
    pub tp_rank: u32,
    /// Number of ranks in the tensor-parallel group.
    #[prost(uint32, tag = "15")]
    pub tp_size: u32,
    /// Number of consecutive ranks with the same heads.
    #[prost(uint32, tag = "16")]
    pub tp_replicas: u32,
}

/// The blocks of two agents are different.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{field} is {theirs} at the caller and {ours} at the owner: both agents must have the same"
)]
pub struct Differs {
    /// The first field that differs, with the name of the agent's option.
    pub field: &'static str,
    /// The peer's value.
    pub theirs: String,
    /// This agent's value.
    pub ours: String,
}

impl BlockDescription {
    /// Checks a description that a peer has sent.
    ///
    /// # Errors
    /// [`WireError::Field`] names the invalid field.
    pub fn check(&self) -> Result<(), WireError> {
        let texts = [
            ("model", &self.model),
            ("tenant", &self.tenant),
            ("hash_scheme", &self.hash_scheme),
            ("dtype", &self.dtype),
            ("layout", &self.layout),
        ];
        texts.into_iter().try_for_each(|(field, text)| check_name(field, text))?;
        if self.model.is_empty() {
            return Err(WireError::field("model", "is required"));
        }
        if self.block_bytes == 0 {
            return Err(WireError::field("block_bytes", "is 0"));
        }
        self.rank().map(drop)
    }

    /// Returns the agent's part of each block, and its layout, or `None` if only the size of a block is known (`layers`
    /// is 0).
    ///
    /// # Errors
    /// [`WireError::Field`] names the field that is invalid or contradicts others.
    pub fn rank(&self) -> Result<Option<RankBlock>, WireError> {
        if self.layers == 0 {
            return self.nothing_more().map(|()| None);
        }
        let config = LayoutConfig {
            num_blocks: 1,
            num_layers: self.layers,
            outer_dim: self.outer_dim,
            page_size: self.block_size,
            inner_dim: self.inner_dim,
            dtype_width_bytes: self.dtype_width_bytes,
            alignment_bytes: self.alignment_bytes,
            base_offset_bytes: 0,
        };
        let rank = self.tp_rank;
        let size = self.tp_size;
        let replicas = self.tp_replicas;
        let rank = RankBlock::new(self.form, config, TensorParallel { rank, size, replicas })?;
        let stated = self.block_bytes;
        let bytes = rank.block().bytes();
        if stated != bytes {
            let why = format!("is {stated}, and the dimensions make {bytes}");
            return Err(WireError::field("block_bytes", why));
        }
        Ok(Some(rank))
    }

    /// Checks that the fields of the layout are 0, because only the size of a block is known.
    fn nothing_more(&self) -> Result<(), WireError> {
        let stated = [
            ("outer_dim", self.outer_dim.into()),
            ("inner_dim", self.inner_dim.into()),
            ("dtype_width_bytes", self.dtype_width_bytes.into()),
            ("form", self.form.into()),
            ("alignment_bytes", self.alignment_bytes),
            ("tp_rank", self.tp_rank.into()),
            ("tp_size", self.tp_size.into()),
            ("tp_replicas", self.tp_replicas.into()),
        ];
        match stated.into_iter().find(|(_, value)| *value != 0_u64) {
            None => Ok(()),
            Some((field, value)) => {
                Err(WireError::field(field, format!("is {value}, and layers is 0")))
            }
        }
    }

    /// Checks that a peer has the same blocks. Their layout and the split of heads may differ.
    ///
    /// # Errors
    /// [`Differs`] names the first field that differs.
    pub fn agree(&self, theirs: &Self) -> Result<(), Differs> {
        let quoted = |text: &str| format!("{text:?}");
        let number = |value: &dyn fmt::Display| value.to_string();
        let parts = |of: &Self| {
            [
                ("model", quoted(&of.model)),
                ("tenant", quoted(&of.tenant)),
                ("hash scheme", quoted(&of.hash_scheme)),
                ("block-size", number(&of.block_size)),
                ("blocks-geometry dtype", quoted(&of.dtype)),
                ("blocks-geometry layout", quoted(&of.layout)),
                ("blocks-geometry layers", number(&of.layers)),
                ("blocks-geometry outer-dim", number(&of.outer_dim)),
                ("blocks-geometry dtype-bytes", number(&of.dtype_width_bytes)),
                ("blocks-geometry inner-dim of all ranks", number(&of.elements())),
                ("blocks-geometry bytes", number(&if of.layers == 0 { of.block_bytes } else { 0 })),
            ]
        };
        let mut pairs = parts(self).into_iter().zip(parts(theirs));
        match pairs.find(|((_, ours), (_, theirs))| ours != theirs) {
            None => Ok(()),
            Some(((field, ours), (_, theirs))) => Err(Differs { field, theirs, ours }),
        }
    }

    /// Elements of all distinct ranks per token, layer and outer index.
    fn elements(&self) -> u64 {
        let shards = self.tp_size.checked_div(self.tp_replicas).unwrap_or_default();
        u64::from(self.inner_dim) * u64::from(shards)
    }
}

/// Checks a name that a peer has sent.
pub(super) fn check_name(field: &'static str, name: &str) -> Result<(), WireError> {
    if name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let why = format!("must have {NAME_BYTES_MAX} bytes at most, and no control character");
        return Err(WireError::field(field, why));
    }
    Ok(())
}
