use super::{AddressRange, BlockSetError, BlockSetId, ContentId, Fence};
use super::{SetMemory, TensorParallel};
use crate::identity::SlotId;
use crate::layout::{AnyLayout, BlockLayout, LayoutConfig, LayoutError, LayoutForm, Region};

/// Maximum layers of a set; bounds the bytes of its description.
pub const SET_LAYERS_MAX: u32 = 1_024;

/// An owner's description of a set to export.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BlockSetDescription {
    /// The set's id.
    pub id: BlockSetId,
    /// The content of the blocks: model, tenant, element type.
    pub content: ContentId,
    /// The part of each token in the set.
    pub tensor_parallel: TensorParallel,
    /// The form of the layout.
    pub form: LayoutForm,
    /// Dimensions of this rank's blocks. The alignment counts from the start of each region.
    pub config: LayoutConfig,
    /// The memory of the set.
    pub memory: SetMemory,
}

/// A checked description of a set: the address of each region of each block, at the owner.
///
/// Address arithmetic never overflows, and each region is in the stated memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BlockSetLayout {
    id: BlockSetId,
    fence: Fence,
    content: ContentId,
    tensor_parallel: TensorParallel,
    layout: AnyLayout,
    memory: SetMemory,
}

/// Address of one region of a block, at the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockDescriptor {
    /// The block.
    pub block: SlotId,
    /// The layer.
    pub layer: u32,
    /// 0 for keys, 1 for values; 0 where one tensor holds both.
    pub outer: u32,
    /// Addresses of the region.
    pub range: AddressRange,
}

impl BlockSetLayout {
    /// Checks a description and creates the layout.
    ///
    /// # Errors
    /// [`BlockSetError`] names the field that is invalid or contradicts others.
    pub fn new(description: BlockSetDescription, fence: Fence) -> Result<Self, BlockSetError> {
        let BlockSetDescription { id, content, tensor_parallel, form, config, memory } =
            description;
        tensor_parallel.validate()?;
        if config.num_layers > SET_LAYERS_MAX {
            let value = config.num_layers.into();
            let max = SET_LAYERS_MAX.into();
            return Err(BlockSetError::Layout(LayoutError::TooLarge {
                field: "num_layers",
                value,
                max,
            }));
        }
        let layout = form.layout(config)?;
        memory.check(&layout)?;
        Ok(Self { id, fence, content, tensor_parallel, layout, memory })
    }

    /// The set's id among its owner's sets.
    #[must_use]
    pub const fn id(&self) -> BlockSetId {
        self.id
    }

    /// The fence, which orders sets with the same id.
    #[must_use]
    pub const fn fence(&self) -> Fence {
        self.fence
    }

    /// The content of the blocks: model, tenant, element type.
    #[must_use]
    pub const fn content(&self) -> ContentId {
        self.content
    }

    /// The part of each token in the set.
    #[must_use]
    pub const fn tensor_parallel(&self) -> TensorParallel {
        self.tensor_parallel
    }

    /// Layout of blocks within the memory.
    #[must_use]
    pub const fn layout(&self) -> &AnyLayout {
        &self.layout
    }

    /// The memory of the set.
    #[must_use]
    pub const fn memory(&self) -> &SetMemory {
        &self.memory
    }

    /// Dimensions of the blocks.
    #[must_use]
    pub fn config(&self) -> &LayoutConfig {
        self.layout.config()
    }

    /// Number of blocks.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        self.config().num_blocks
    }

    /// The addresses of `bytes` bytes at `offset` in an allocation; `None` if they are outside its memory.
    #[must_use]
    pub fn addresses(&self, allocation: u32, offset: u64, bytes: u64) -> Option<AddressRange> {
        let memory = self.memory.ranges.get(allocation as usize)?;
        let end = offset.checked_add(bytes)?;
        // The memory's end fits into 64 bits, so this sum does, too.
        (end <= memory.bytes).then(|| AddressRange { address: memory.address + offset, bytes })
    }

    /// Returns the addresses of one region of a block.
    ///
    /// # Errors
    /// [`LayoutError::OutOfRange`] if the block, layer or outer index does not exist.
    pub fn region(
        &self,
        block: SlotId,
        layer: u32,
        outer: u32,
    ) -> Result<AddressRange, LayoutError> {
        let Region { allocation, offset, bytes } = self.layout.region(block.0, layer, outer)?;
        let range = self.addresses(allocation, offset, bytes);
        // The constructor refuses memory that is smaller than the layout.
        range.ok_or(LayoutError::Overflow { field: "address" })
    }

    /// All regions of `blocks`, by block, layer and outer index. Skips blocks that are out of range.
    pub fn descriptors<'a>(
        &'a self,
        blocks: &'a [SlotId],
    ) -> impl Iterator<Item = BlockDescriptor> + 'a {
        let layers = self.config().num_layers;
        let outers = self.config().outer_dim;
        let places = move |&block: &SlotId| {
            (0..layers)
                .flat_map(move |layer| (0..outers).map(move |outer| (layer, outer)))
                .filter_map(move |(layer, outer)| {
                    let range = self.region(block, layer, outer).ok()?;
                    Some(BlockDescriptor { block, layer, outer, range })
                })
        };
        blocks.iter().flat_map(places)
    }
}
