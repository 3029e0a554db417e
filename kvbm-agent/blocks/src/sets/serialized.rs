use super::bytes::Reader;
use super::set_layout::SET_LAYERS_MAX;
use super::{AddressRange, BlockSetDescription, BlockSetId, BlockSetLayout, ContentId};
use super::{DeserializeError, Fence, MemoryKind, SetMemory, TensorParallel};
use crate::layout::{BlockLayout, LayerOrder, LayoutConfig, LayoutForm, Strides};
use xxhash_rust::xxh3::xxh3_64;

/// First bytes of every serialized layout.
const MAGIC: [u8; 4] = *b"KVBL";
/// The only version so far.
const VERSION: u16 = 1;
/// Bytes before the ranges of memory.
const HEAD_BYTES: usize = 132;
/// Bytes of one memory range.
const RANGE_BYTES: usize = 16;
/// Bytes of the checksum at the end.
const CHECKSUM_BYTES: usize = 8;

/// Maximum bytes of a serialized layout: one with an allocation for each of [`SET_LAYERS_MAX`] layers.
pub const SERIALIZED_LAYOUT_BYTES_MAX: usize =
    HEAD_BYTES + RANGE_BYTES * SET_LAYERS_MAX as usize + CHECKSUM_BYTES;

/// A serialized [`BlockSetLayout`], to be sent to a peer. Unchecked until [`deserialize`](Self::deserialize).
///
/// Version 1, all numbers little-endian:
///
/// | bytes | field |
/// | --- | --- |
/// | 4 | magic, `KVBL` |
/// | 2 | version, 1 |
/// | 1 | form: 0 fully contiguous; layer-separate: 1 block-contiguous, 2 outer-contiguous |
/// | 1 | memory kind: 0 VRAM, 1 DRAM, 2 file, 3 object |
/// | 4 | length of everything |
/// | 8, 8, 8, 8 | id of the set; fence: epoch, export; content |
/// | 4, 4, 4 | tensor-parallel rank, size, replicas |
/// | 4 × 6 | blocks, layers, outer dimension, page size, inner dimension, bytes of an element |
/// | 8, 8 | alignment, base offset |
/// | 8, 8, 8 | strides: block, layer (0 where layers are separate), outer |
/// | 8 | device id |
/// | 4 | ranges of memory |
/// | 16 each | address, bytes |
/// | 8 | XXH3-64 of everything before it |
///
/// Strides follow from the other fields. They are included so that two versions that compute them differently detect
/// it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SerializedBlockLayout(pub Vec<u8>);

impl BlockSetLayout {
    /// Serializes the layout into at most [`SERIALIZED_LAYOUT_BYTES_MAX`] bytes.
    #[must_use]
    pub fn serialize(&self) -> SerializedBlockLayout {
        let config = self.config();
        let strides = self.layout().strides();
        let memory = self.memory();
        let length = HEAD_BYTES + RANGE_BYTES * memory.ranges.len() + CHECKSUM_BYTES;
        debug_assert!(length <= SERIALIZED_LAYOUT_BYTES_MAX, "layers are limited");
        let mut out = Vec::with_capacity(length);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.push(form_code(self.layout().form()));
        out.push(memory.kind as u8);
        out.extend(u32_of(length).to_le_bytes());
        let fence = self.fence();
        for value in [self.id().0, fence.epoch, fence.export, self.content().0] {
            out.extend(value.to_le_bytes());
        }
        let TensorParallel { rank, size, replicas } = self.tensor_parallel();
        for value in [rank, size, replicas] {
            out.extend(value.to_le_bytes());
        }
        for value in [
            config.num_blocks,
            config.num_layers,
            config.outer_dim,
            config.page_size,
            config.inner_dim,
            config.dtype_width_bytes,
        ] {
            out.extend(value.to_le_bytes());
        }
        for value in [
            config.alignment_bytes,
            config.base_offset_bytes,
            strides.block,
            strides.layer.unwrap_or(0),
            strides.outer,
            memory.device_id,
        ] {
            out.extend(value.to_le_bytes());
        }
        out.extend(u32_of(memory.ranges.len()).to_le_bytes());
        debug_assert_eq!(out.len(), HEAD_BYTES, "the table above is right");
        for range in &memory.ranges {
            out.extend(range.address.to_le_bytes());
            out.extend(range.bytes.to_le_bytes());
        }
        out.extend(xxh3_64(&out).to_le_bytes());
        SerializedBlockLayout(out)
    }
}

impl SerializedBlockLayout {
    /// Decodes and checks the layout: every region of every block is in the peer's memory.
    ///
    /// # Errors
    /// [`DeserializeError`] names the first field that is truncated, unknown, out of range, overflows or contradicts
    /// others.
    pub fn deserialize(&self) -> Result<BlockSetLayout, DeserializeError> {
        let bytes = self.0.as_slice();
        if bytes.len() > SERIALIZED_LAYOUT_BYTES_MAX {
            let max = SERIALIZED_LAYOUT_BYTES_MAX;
            return Err(DeserializeError::TooLong { bytes: bytes.len(), max });
        }
        let mut reader = Reader::new(bytes);
        if reader.bytes("magic")? != MAGIC {
            return Err(DeserializeError::Magic);
        }
        let version = reader.u16("version")?;
        if version != VERSION {
            return Err(DeserializeError::Version { version });
        }
        let form = form_of(reader.u8("form")?)?;
        let kind = kind_of(reader.u8("memory_kind")?)?;
        agree("length", reader.u32("length")?.into(), bytes.len() as u64)?;
        check_sum(bytes)?;
        let id = BlockSetId(reader.u64("block_set_id")?);
        let fence = Fence { epoch: reader.u64("epoch")?, export: reader.u64("export")? };
        let content = ContentId(reader.u64("content")?);
        let tensor_parallel = TensorParallel {
            rank: reader.u32("tp_rank")?,
            size: reader.u32("tp_size")?,
            replicas: reader.u32("tp_replicas")?,
        };
        let config = config(&mut reader)?;
        let strides = Strides {
            block: reader.u64("block_stride")?,
            layer: Some(reader.u64("layer_stride")?).filter(|stride| *stride > 0),
            outer: reader.u64("outer_stride")?,
        };
        let memory = memory(&mut reader, kind)?;
        let description =
            BlockSetDescription { id, content, tensor_parallel, form, config, memory };
        let layout = BlockSetLayout::new(description, fence)?;
        let computed = layout.layout().strides();
        agree("block_stride", strides.block, computed.block)?;
        agree("layer_stride", strides.layer.unwrap_or(0), computed.layer.unwrap_or(0))?;
        agree("outer_stride", strides.outer, computed.outer)?;
        Ok(layout)
    }
}

/// Reads the layout's fields.
fn config(reader: &mut Reader<'_>) -> Result<LayoutConfig, DeserializeError> {
    Ok(LayoutConfig {
        num_blocks: reader.u32("num_blocks")?,
        num_layers: reader.u32("num_layers")?,
        outer_dim: reader.u32("outer_dim")?,
        page_size: reader.u32("page_size")?,
        inner_dim: reader.u32("inner_dim")?,
        dtype_width_bytes: reader.u32("dtype_width_bytes")?,
        alignment_bytes: reader.u64("alignment_bytes")?,
        base_offset_bytes: reader.u64("base_offset_bytes")?,
    })
}

/// Reads the remaining fields except the checksum. Allocates at most in proportion to the input's length.
fn memory(reader: &mut Reader<'_>, kind: MemoryKind) -> Result<SetMemory, DeserializeError> {
    let device_id = reader.u64("device_id")?;
    let count = reader.u32("regions")?;
    let present = reader.bytes_left().saturating_sub(CHECKSUM_BYTES) / RANGE_BYTES;
    agree("regions", count.into(), present as u64)?;
    let mut ranges = Vec::with_capacity(present);
    for _ in 0..count {
        let address = reader.u64("region_address")?;
        let bytes = reader.u64("region_bytes")?;
        ranges.push(AddressRange { address, bytes });
    }
    // Fewer bytes than one range may remain.
    agree("checksum_bytes", reader.bytes_left() as u64, CHECKSUM_BYTES as u64)?;
    Ok(SetMemory { kind, device_id, ranges })
}

fn check_sum(bytes: &[u8]) -> Result<(), DeserializeError> {
    let (body, stated) = bytes
        .split_last_chunk::<CHECKSUM_BYTES>()
        .ok_or(DeserializeError::Truncated { field: "checksum" })?;
    let stated = u64::from_le_bytes(*stated);
    let computed = xxh3_64(body);
    if stated == computed { Ok(()) } else { Err(DeserializeError::Checksum { stated, computed }) }
}

const fn agree(field: &'static str, stated: u64, computed: u64) -> Result<(), DeserializeError> {
    if stated == computed {
        return Ok(());
    }
    Err(DeserializeError::Contradiction { field, stated, computed })
}

const fn form_code(form: LayoutForm) -> u8 {
    match form {
        LayoutForm::FullyContiguous => 0,
        LayoutForm::LayerSeparate(LayerOrder::BlockContiguous) => 1,
        LayoutForm::LayerSeparate(LayerOrder::OuterContiguous) => 2,
    }
}

const fn form_of(value: u8) -> Result<LayoutForm, DeserializeError> {
    Ok(match value {
        0 => LayoutForm::FullyContiguous,
        1 => LayoutForm::LayerSeparate(LayerOrder::BlockContiguous),
        2 => LayoutForm::LayerSeparate(LayerOrder::OuterContiguous),
        _ => return Err(DeserializeError::Code { field: "form", value }),
    })
}

fn kind_of(value: u8) -> Result<MemoryKind, DeserializeError> {
    let found = MemoryKind::ALL.into_iter().find(|kind| *kind as u8 == value);
    found.ok_or(DeserializeError::Code { field: "memory_kind", value })
}

/// Converts a length, which is less than [`SERIALIZED_LAYOUT_BYTES_MAX`].
fn u32_of(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
