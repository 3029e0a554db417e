//! What the bytes of blocks mean.

use super::error::WireError;
use super::rank::RankBlock;
use crate::limits::NAME_BYTES_MAX;
use kvasir_blocks::LayoutConfig;
use kvasir_blocks::sets::TensorParallel;
use std::fmt;

/// Description of an agent's blocks. The first eleven fields tell what the blocks are; how an agent splits heads among ranks
/// and where the parts of a block lie may differ between two agents.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BlockDescription {
    /// The model, 1 to 256 bytes.
    #[prost(string, tag = "1")]
    pub model: String,
    /// Its tenant, up to 256 bytes.
    #[prost(string, tag = "2")]
    pub tenant: String,
    /// How tokens become hashes.
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
    /// Whatever else tells blocks apart, in the operator's words.
    #[prost(string, tag = "7")]
    pub layout: String,
    /// Layers; 0 if only the bytes are known, as for all that follow.
    #[prost(uint32, tag = "8")]
    pub layers: u32,
    /// 2 for keys and values apart, else 1.
    #[prost(uint32, tag = "9")]
    pub outer_dim: u32,
    /// Elements per token, layer and outer index, of this rank.
    #[prost(uint32, tag = "10")]
    pub inner_dim: u32,
    /// Bytes of an element.
    #[prost(uint32, tag = "11")]
    pub dtype_width_bytes: u32,
    /// Form of the layout: 0 contiguous, 1 layers apart, 2 keys and values apart, too.
    #[prost(uint32, tag = "12")]
    pub form: u32,
    /// Where layers are apart, they begin at multiples of it; 1 for none.
    #[prost(uint64, tag = "13")]
    pub alignment_bytes: u64,
    /// Tensor-parallel rank,
    #[prost(uint32, tag = "14")]
    pub tp_rank: u32,
    /// ranks of the group,
    #[prost(uint32, tag = "15")]
    pub tp_size: u32,
    /// and consecutive ranks that hold the same heads.
    #[prost(uint32, tag = "16")]
    pub tp_replicas: u32,
}

/// The blocks of two agents are others.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{field} is {theirs} at the caller and {ours} at the owner: both agents must have the same"
)]
pub struct Differs {
    /// The first field in which they differ, by the agent's options.
    pub field: &'static str,
    /// What the peer has.
    pub theirs: String,
    /// What is here.
    pub ours: String,
}

impl BlockDescription {
    /// Checks what a peer has stated.
    ///
    /// # Errors
    /// [`WireError::Field`] names the field.
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

    /// Which part of each block the agent has, and where it lies; none if only the bytes are known.
    ///
    /// # Errors
    /// [`WireError::Field`] names the field that can't be, or does not follow from the others.
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

    /// Where only the bytes are known, nothing else can be stated.
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

    /// Whether the blocks of a peer are the same as these, in whatever layout.
    ///
    /// # Errors
    /// [`Differs`] names the first field in which they differ.
    pub fn agree(&self, theirs: &Self) -> Result<(), Differs> {
        let quoted = |text: &str| format!("{text:?}");
        let number = |value: &dyn fmt::Display| value.to_string();
        let parts = |of: &Self| {
            [
                ("model", quoted(&of.model)),
                ("tenant", quoted(&of.tenant)),
                ("hash scheme", quoted(&of.hash_scheme)),
                ("block-size", number(&of.block_size)),
                ("blocks-dtype", quoted(&of.dtype)),
                ("blocks-layout", quoted(&of.layout)),
                ("blocks-layers", number(&of.layers)),
                ("blocks-outer-dim", number(&of.outer_dim)),
                ("blocks-dtype-bytes", number(&of.dtype_width_bytes)),
                ("blocks-inner-dim of all ranks", number(&of.elements())),
                ("blocks-bytes", number(&if of.layers == 0 { of.block_bytes } else { 0 })),
            ]
        };
        let mut pairs = parts(self).into_iter().zip(parts(theirs));
        match pairs.find(|((_, ours), (_, theirs))| ours != theirs) {
            None => Ok(()),
            Some(((field, ours), (_, theirs))) => Err(Differs { field, theirs, ours }),
        }
    }

    /// Elements per token, layer and outer index, of all ranks that differ.
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
