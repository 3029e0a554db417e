//! What the bytes of blocks mean.

use super::error::WireError;
use crate::limits::NAME_BYTES_MAX;
use std::fmt;

/// Description of an agent's blocks. Two agents exchange blocks only if all fields are equal.
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
    /// Bytes of a block.
    #[prost(uint64, tag = "5")]
    pub block_bytes: u64,
    /// The element type, as named by the operator.
    #[prost(string, tag = "6")]
    pub dtype: String,
    /// The layout, as named by the operator.
    #[prost(string, tag = "7")]
    pub layout: String,
    /// Layers; 0 if only the bytes are known, as for the next three.
    #[prost(uint32, tag = "8")]
    pub layers: u32,
    /// 2 for keys and values apart, else 1.
    #[prost(uint32, tag = "9")]
    pub outer_dim: u32,
    /// Elements per token, layer and outer index.
    #[prost(uint32, tag = "10")]
    pub inner_dim: u32,
    /// Bytes of an element.
    #[prost(uint32, tag = "11")]
    pub dtype_width_bytes: u32,
}

/// The descriptions of two agents differ.
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
        Ok(())
    }

    /// Whether the blocks of a peer are the same as these.
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
                ("blocks-inner-dim", number(&of.inner_dim)),
                ("blocks-dtype-bytes", number(&of.dtype_width_bytes)),
                ("blocks-bytes", number(&of.block_bytes)),
            ]
        };
        let mut pairs = parts(self).into_iter().zip(parts(theirs));
        match pairs.find(|((_, ours), (_, theirs))| ours != theirs) {
            None => Ok(()),
            Some(((field, ours), (_, theirs))) => Err(Differs { field, theirs, ours }),
        }
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
