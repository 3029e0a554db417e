//! Settings of the size of a block, and of its layout in a slot.

use crate::blocks::LayoutDimensions;
use kvasir_blocks::layout::LayerOrder;
use kvasir_blocks::sets::TensorParallel;
use kvasir_blocks::{BlockInSlot, LayoutConfig, LayoutForm};
use kvasir_process::config::ConfigError;
use kvasir_process::text::{ByteCount, Setting, Settings, Unset};
use kvasir_proto::limits::NAME_BYTES_MAX;
use std::fmt;
use std::str::FromStr;

/// Alignment of slots, and therefore the maximum alignment of a block's parts.
const ALIGNMENT_BYTES_MAX: usize = crate::blocks::SLOT_ALIGNMENT_BYTES;

/// Size of a block, and its layout in a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeometrySettings {
    /// Size of one block, in place of `layers` and `inner_dim`.
    pub bytes: Unset<ByteCount>,
    /// Number of layers of the model.
    pub layers: Unset<u32>,
    /// Elements per token and layer of one rank, for keys or for values.
    pub inner_dim: Unset<u32>,
    /// Tensors per layer: 2 for keys and values, 1 if combined.
    pub outer_dim: u32,
    /// Size of one element.
    pub dtype_bytes: u32,
    /// Data type of the elements, as the operator names it.
    pub dtype: Unset<String>,
    /// Name for further properties of the layout.
    pub layout: Unset<String>,
    /// Layout of a block in its slot.
    pub form: FormSpec,
    /// Alignment of a block's parts.
    pub alignment: ByteCount,
    /// Rank of the engine in its tensor-parallel group.
    pub tp_rank: u32,
    /// Number of ranks in the group.
    pub tp_size: u32,
    /// Number of consecutive ranks with the same heads.
    pub tp_replicas: u32,
}

impl Default for GeometrySettings {
    fn default() -> Self {
        Self {
            bytes: Unset(None),
            layers: Unset(None),
            inner_dim: Unset(None),
            outer_dim: 2,
            dtype_bytes: 2,
            dtype: Unset(None),
            layout: Unset(None),
            form: FormSpec(LayoutForm::FullyContiguous),
            alignment: ByteCount(1),
            tp_rank: 0,
            tp_size: 1,
            tp_replicas: 1,
        }
    }
}

impl Settings for GeometrySettings {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![
            ("bytes", &mut self.bytes),
            ("layers", &mut self.layers),
            ("inner-dim", &mut self.inner_dim),
            ("outer-dim", &mut self.outer_dim),
            ("dtype-bytes", &mut self.dtype_bytes),
            ("dtype", &mut self.dtype),
            ("layout", &mut self.layout),
            ("form", &mut self.form),
            ("alignment", &mut self.alignment),
            ("tp-rank", &mut self.tp_rank),
            ("tp-size", &mut self.tp_size),
            ("tp-replicas", &mut self.tp_replicas),
        ]
    }
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

impl GeometrySettings {
    /// Whether a size or a position of heads is set.
    pub(super) fn is_set(&self) -> bool {
        let sizes = self.bytes.0.is_some() || self.layers.0.is_some() || self.inner_dim.0.is_some();
        sizes || self.changed().into_iter().any(|(_, is_set)| is_set)
    }

    /// Returns the settings for the position of heads, each with true if it differs from its default.
    fn changed(&self) -> [(&'static str, bool); 5] {
        [
            ("blocks-geometry form", self.form.0 != LayoutForm::FullyContiguous),
            ("blocks-geometry alignment", self.alignment.0 != 1),
            ("blocks-geometry tp-rank", self.tp_rank != 0),
            ("blocks-geometry tp-size", self.tp_size != 1),
            ("blocks-geometry tp-replicas", self.tp_replicas != 1),
        ]
    }

    /// Checks the settings for blocks of `block_size` tokens.
    ///
    /// # Errors
    /// If a setting is missing or cannot be used. The error names it.
    pub(super) fn check(&self, block_size: u32) -> Result<Layout, ConfigError> {
        let dimensions = match (self.bytes.0, self.layers.0, self.inner_dim.0) {
            (Some(bytes), None, None) => return self.of_bytes(block_size, bytes),
            (None, Some(layers), Some(inner_dim)) => self.dimensions(layers, inner_dim)?,
            (Some(_), _, _) => {
                let why = "does not go with layers and inner-dim: remove bytes, or remove layers and inner-dim";
                return Err(ConfigError::invalid("blocks-geometry bytes", why));
            }
            (None, _, _) => {
                let why = "must have layers and inner-dim, or bytes: blocks-host needs the size of a block";
                return Err(ConfigError::invalid("blocks-geometry", why));
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

    /// Returns the layout of blocks of which only the size is known. Fails if a setting for the position of heads is
    /// set, or `bytes` is no multiple of `block_size`.
    fn of_bytes(
        &self,
        block_size: u32,
        ByteCount(bytes): ByteCount,
    ) -> Result<Layout, ConfigError> {
        if let Some((field, _)) = self.changed().into_iter().find(|(_, is_set)| *is_set) {
            let why = "needs layers and inner-dim in place of bytes";
            return Err(ConfigError::invalid(field, why));
        }
        let inner_dim = bytes / (block_size as usize).max(1);
        let inner_dim = u32::try_from(inner_dim).unwrap_or_default();
        if inner_dim == 0 || bytes != inner_dim as usize * block_size as usize {
            let why = format!(
                "is {bytes}, must be a multiple of block-size, {block_size}, of less than 4 GiB each"
            );
            return Err(ConfigError::invalid("blocks-geometry bytes", why));
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

    /// Converts the settings to a layout's dimensions. Fails if the alignment is too large, or is set for contiguous
    /// blocks.
    fn dimensions(&self, layers: u32, inner_dim: u32) -> Result<LayoutDimensions, ConfigError> {
        const ALIGNMENT: &str = "blocks-geometry alignment";
        let form = self.form.0;
        let ByteCount(alignment) = self.alignment;
        if form == LayoutForm::FullyContiguous && alignment != 1 {
            let why = "has no effect on contiguous blocks, which begin with their slots at multiples of 4 KiB: leave it out, \
                       or set form";
            return Err(ConfigError::invalid(ALIGNMENT, why));
        }
        if alignment > ALIGNMENT_BYTES_MAX {
            let why = format!("is {alignment}, the limit is {ALIGNMENT_BYTES_MAX}");
            return Err(ConfigError::invalid(ALIGNMENT, why));
        }
        Ok(LayoutDimensions {
            layers,
            outer_dim: self.outer_dim,
            inner_dim,
            dtype_width_bytes: self.dtype_bytes,
            form,
            alignment_bytes: alignment as u64,
            parallel: TensorParallel {
                rank: self.tp_rank,
                size: self.tp_size,
                replicas: self.tp_replicas,
            },
        })
    }

    /// Describes the bytes of a block in one line. Settings at their default add nothing, so that existing blocks on
    /// disks keep their description.
    fn describe(
        &self,
        block_size: u32,
        block_bytes: u64,
        dimensions: Option<&LayoutDimensions>,
    ) -> Result<String, ConfigError> {
        let dtype = checked_name("blocks-geometry dtype", &self.dtype)?;
        let layout = checked_name("blocks-geometry layout", &self.layout)?;
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

/// Converts a layout error to an error that names the setting instead of the layout's field.
fn named(error: &dyn fmt::Display) -> ConfigError {
    let text = error.to_string();
    let names = [
        ("num_layers", "blocks-geometry layers"),
        ("outer_dim", "blocks-geometry outer-dim"),
        ("inner_dim", "blocks-geometry inner-dim"),
        ("dtype_width_bytes", "blocks-geometry dtype-bytes"),
        ("alignment_bytes", "blocks-geometry alignment"),
        ("tp_size", "blocks-geometry tp-size"),
        ("tp_rank", "blocks-geometry tp-rank"),
        ("tp_replicas", "blocks-geometry tp-replicas"),
    ];
    let named = names.iter().find(|(name, _)| text.starts_with(name));
    let (name, field) = named.copied().unwrap_or(("", "blocks-geometry layers"));
    ConfigError::invalid(field, text.trim_start_matches(name).trim_start())
}

/// Returns a name that the operator chose, or an empty text if unset. Fails if the name is too long or has a control
/// character.
fn checked_name<'a>(
    field: &'static str,
    Unset(name): &'a Unset<String>,
) -> Result<&'a str, ConfigError> {
    let name = name.as_deref().unwrap_or_default();
    let bytes = name.len();
    let limit = NAME_BYTES_MAX;
    if bytes > limit || name.chars().any(char::is_control) {
        let why = format!("must have {limit} bytes at most, and no control character");
        return Err(ConfigError::invalid(field, why));
    }
    Ok(name)
}
