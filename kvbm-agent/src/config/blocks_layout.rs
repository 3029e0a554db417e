//! Options for the size of a block, and for its layout in a slot.

use crate::blocks::LayoutDimensions;
use clap::Args;
use kvasir_blocks::layout::LayerOrder;
use kvasir_blocks::sets::TensorParallel;
use kvasir_blocks::{BlockInSlot, LayoutConfig, LayoutForm};
use kvasir_process::config::ConfigError;
use kvasir_process::text::{self, ByteCount};
use kvasir_proto::limits::NAME_BYTES_MAX;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// Alignment of slots, and therefore the maximum alignment of a block's parts.
const ALIGNMENT_BYTES_MAX: usize = crate::blocks::SLOT_ALIGNMENT_BYTES;

/// Options of a block's size and layout.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LayoutOptions {
    /// Size of one block, a multiple of --block-size. Replaces --blocks-layers and --blocks-inner-dim
    #[arg(long, value_name = "BYTES")]
    pub blocks_bytes: Option<ByteCount>,
    /// Number of layers of the model. Replaces --blocks-bytes, together with --blocks-inner-dim: a block has layers x
    /// block-size x inner-dim x dtype-bytes x outer-dim bytes
    #[arg(long, value_name = "COUNT")]
    pub blocks_layers: Option<u32>,
    /// Elements per token and layer, for keys or for values. Number of heads times head width. With --blocks-tp-size,
    /// the elements of one rank. Requires --blocks-layers
    #[arg(long, value_name = "COUNT")]
    pub blocks_inner_dim: Option<u32>,
    /// Tensors per layer: 2 for keys and values, 1 if combined (MLA)
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    pub blocks_outer_dim: u32,
    /// Size of one element: 1, 2, 4, 8 or 16 bytes
    #[arg(long, value_name = "BYTES", default_value_t = 2)]
    pub blocks_dtype_bytes: u32,
    /// Data type of the elements, such as bfloat16. Agents find blocks on disk and in volumes only if model, tenant,
    /// sizes, --blocks-dtype and layout are equal
    #[arg(long, value_name = "NAME", default_value = "")]
    pub blocks_dtype: String,
    /// Name for further properties of the block layout, such as heads-first. Use the engine's words for what the other
    /// options do not state. Engines with different layouts must not share blocks
    #[arg(long, value_name = "NAME", default_value = "")]
    pub blocks_layout: String,
    /// Layout of a block in its slot: contiguous, layer-separate or outer-separate. layer-separate aligns each layer to
    /// --blocks-alignment; outer-separate aligns the keys and the values of each layer
    #[arg(long, value_name = "FORM", default_value_t = FormSpec(LayoutForm::FullyContiguous))]
    #[serde(serialize_with = "text::serialize")]
    pub blocks_form: FormSpec,
    /// Alignment of a block's parts, a power of two up to 4KiB. Requires --blocks-form layer-separate or
    /// outer-separate. The agent fills the gaps with zeros
    #[arg(long, value_name = "BYTES", default_value_t = ByteCount(1))]
    pub blocks_alignment: ByteCount,
    /// Rank of the engine in its tensor-parallel group. Agents of other ranks or groups fetch the heads that they need
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    pub blocks_tp_rank: u32,
    /// Number of ranks in the tensor-parallel group, 1 to 1,024. --blocks-inner-dim is the size of one rank
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub blocks_tp_size: u32,
    /// Number of consecutive tensor-parallel ranks that have the same heads. Set it to --blocks-tp-size if all ranks
    /// have the same heads (MLA), and above 1 if there are fewer heads than ranks
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub blocks_tp_replicas: u32,
}

/// Layout of a block in its slot, as configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormSpec(pub LayoutForm);

const FORMS: [(&str, LayoutForm); 3] = [
    ("contiguous", LayoutForm::FullyContiguous),
    ("layer-separate", LayoutForm::LayerSeparate(LayerOrder::BlockContiguous)),
    ("outer-separate", LayoutForm::LayerSeparate(LayerOrder::OuterContiguous)),
];

impl fmt::Display for FormSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = FORMS.iter().find(|(_, form)| *form == self.0);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

impl FromStr for FormSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = FORMS.iter().find(|(name, _)| *name == text);
        let form = form.map(|(_, form)| Self(*form));
        form.ok_or_else(|| format!("{text:?} is not contiguous, layer-separate or outer-separate"))
    }
}

/// Checked size and layout of blocks.
pub(super) struct Layout {
    /// Layout for the manager. If only the block size is known, the dimensions are chosen to give this size.
    pub(super) config: LayoutConfig,
    pub(super) form: LayoutForm,
    pub(super) dimensions: Option<LayoutDimensions>,
    /// Description of the bytes, part of the blocks' fingerprint.
    pub(super) description: String,
}

impl LayoutOptions {
    /// Name of the first option that is set, if any.
    pub(super) fn first_set(&self) -> Option<&'static str> {
        let set = [
            ("blocks-bytes", self.blocks_bytes.is_some()),
            ("blocks-layers", self.blocks_layers.is_some()),
            ("blocks-inner-dim", self.blocks_inner_dim.is_some()),
        ];
        set.into_iter().chain(self.changed()).find(|(_, is_set)| *is_set).map(|(field, _)| field)
    }

    /// Options for the position of heads, and whether each differs from its default.
    fn changed(&self) -> [(&'static str, bool); 5] {
        [
            ("blocks-form", self.blocks_form.0 != LayoutForm::FullyContiguous),
            ("blocks-alignment", self.blocks_alignment.0 != 1),
            ("blocks-tp-rank", self.blocks_tp_rank != 0),
            ("blocks-tp-size", self.blocks_tp_size != 1),
            ("blocks-tp-replicas", self.blocks_tp_replicas != 1),
        ]
    }

    /// Checks the options for blocks of `block_size` tokens.
    ///
    /// # Errors
    /// If an option is missing or cannot be used. The error names it.
    pub(super) fn check(&self, block_size: u32) -> Result<Layout, ConfigError> {
        let dimensions = match (self.blocks_bytes, self.blocks_layers, self.blocks_inner_dim) {
            (Some(bytes), None, None) => return self.of_bytes(block_size, bytes),
            (None, Some(layers), Some(inner_dim)) => self.dimensions(layers, inner_dim)?,
            (Some(_), _, _) => {
                let why =
                    "does not go with blocks-layers and blocks-inner-dim: leave it or them out";
                return Err(ConfigError::invalid("blocks-bytes", why));
            }
            (None, _, _) => {
                let why =
                    "is required with blocks-host-bytes, or blocks-layers and blocks-inner-dim are";
                return Err(ConfigError::invalid("blocks-bytes", why));
            }
        };
        let config = LayoutConfig {
            num_blocks: 1,
            num_layers: dimensions.layers,
            outer_dim: dimensions.outer_dim,
            page_size: block_size,
            inner_dim: dimensions.inner_dim,
            dtype_width_bytes: dimensions.dtype_width_bytes,
            alignment_bytes: dimensions.alignment_bytes,
            base_offset_bytes: 0,
        };
        let form = dimensions.form;
        let block = BlockInSlot::new(form, config).map_err(|error| named(&error))?;
        dimensions.parallel.validate().map_err(|error| named(&error))?;
        let description = self.describe(block_size, block.bytes(), Some(&dimensions))?;
        Ok(Layout { config, form, dimensions: Some(dimensions), description })
    }

    /// Layout of blocks of which only the size is known.
    fn of_bytes(
        &self,
        block_size: u32,
        ByteCount(bytes): ByteCount,
    ) -> Result<Layout, ConfigError> {
        if let Some((field, _)) = self.changed().into_iter().find(|(_, is_set)| *is_set) {
            let why = "needs blocks-layers and blocks-inner-dim in place of blocks-bytes";
            return Err(ConfigError::invalid(field, why));
        }
        let inner_dim = bytes / (block_size as usize).max(1);
        let inner_dim = u32::try_from(inner_dim).unwrap_or_default();
        if inner_dim == 0 || bytes != inner_dim as usize * block_size as usize {
            let why = format!(
                "is {bytes}, must be a multiple of block-size, {block_size}, of less than 4 GiB each"
            );
            return Err(ConfigError::invalid("blocks-bytes", why));
        }
        let config = LayoutConfig {
            num_blocks: 1,
            num_layers: 1,
            outer_dim: 1,
            page_size: block_size,
            inner_dim,
            dtype_width_bytes: 1,
            alignment_bytes: 1,
            base_offset_bytes: 0,
        };
        config.validate().map_err(|error| named(&error))?;
        let description = self.describe(block_size, config.block_bytes(), None)?;
        Ok(Layout { config, form: LayoutForm::FullyContiguous, dimensions: None, description })
    }

    fn dimensions(&self, layers: u32, inner_dim: u32) -> Result<LayoutDimensions, ConfigError> {
        let (form, ByteCount(alignment)) = (self.blocks_form.0, self.blocks_alignment);
        if form == LayoutForm::FullyContiguous && alignment != 1 {
            let why = "has no effect on contiguous blocks, which begin with their slots at multiples of 4 KiB: leave it out, \
                       or set blocks-form";
            return Err(ConfigError::invalid("blocks-alignment", why));
        }
        if alignment > ALIGNMENT_BYTES_MAX {
            let why = format!("is {alignment}, the limit is {ALIGNMENT_BYTES_MAX}");
            return Err(ConfigError::invalid("blocks-alignment", why));
        }
        Ok(LayoutDimensions {
            layers,
            outer_dim: self.blocks_outer_dim,
            inner_dim,
            dtype_width_bytes: self.blocks_dtype_bytes,
            form,
            alignment_bytes: alignment as u64,
            parallel: TensorParallel {
                rank: self.blocks_tp_rank,
                size: self.blocks_tp_size,
                replicas: self.blocks_tp_replicas,
            },
        })
    }

    /// Describes the bytes of a block. Options at their default add nothing, so that blocks on disks keep their names.
    fn describe(
        &self,
        block_size: u32,
        block_bytes: u64,
        dimensions: Option<&LayoutDimensions>,
    ) -> Result<String, ConfigError> {
        let dtype = checked_name("blocks-dtype", &self.blocks_dtype)?;
        let layout = checked_name("blocks-layout", &self.blocks_layout)?;
        let mut parts = String::new();
        if let Some(at) = dimensions {
            let LayoutDimensions { layers, outer_dim, inner_dim, dtype_width_bytes, .. } = at;
            parts = format!(
                ", {layers} layers of {outer_dim} x {inner_dim} elements of {dtype_width_bytes} bytes"
            );
            if at.form != LayoutForm::FullyContiguous {
                let form = FormSpec(at.form);
                let alignment = at.alignment_bytes;
                parts += &format!(", {form}, aligned to {alignment}");
            }
            // Ranks with the same heads have the same blocks.
            let shard = at.parallel.shard();
            let shards = at.parallel.shards();
            if shards > 1 {
                parts += &format!(", part {shard} of {shards} of the heads");
            }
        }
        Ok(format!(
            "{block_size} tokens and {block_bytes} bytes a block{parts}, dtype {dtype:?}, layout {layout:?}"
        ))
    }
}

/// Converts a layout error to an error that names the option.
fn named(error: &dyn fmt::Display) -> ConfigError {
    let text = error.to_string();
    let names = [
        ("num_layers", "blocks-layers"),
        ("outer_dim", "blocks-outer-dim"),
        ("inner_dim", "blocks-inner-dim"),
        ("dtype_width_bytes", "blocks-dtype-bytes"),
        ("alignment_bytes", "blocks-alignment"),
        ("tp_size", "blocks-tp-size"),
        ("tp_rank", "blocks-tp-rank"),
        ("tp_replicas", "blocks-tp-replicas"),
    ];
    let named = names.iter().find(|(name, _)| text.starts_with(name));
    let (name, field) = named.copied().unwrap_or(("", "blocks-layers"));
    ConfigError::invalid(field, text.trim_start_matches(name).trim_start())
}

/// Checks a name that the operator chose.
fn checked_name<'a>(field: &'static str, name: &'a str) -> Result<&'a str, ConfigError> {
    let bytes = name.len();
    let limit = NAME_BYTES_MAX;
    if bytes > limit || name.chars().any(char::is_control) {
        let why = format!("must have {limit} bytes at most, and no control character");
        return Err(ConfigError::invalid(field, why));
    }
    Ok(name)
}
