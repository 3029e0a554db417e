use super::{AddressRange, BlockSetError, BlockSetId, ContentId, Fence};
use super::{SetMemory, TensorParallel};
use crate::identity::SlotId;
use crate::layout::{AnyLayout, BlockLayout, LayoutConfig, LayoutError, LayoutForm, Region};

/// Most layers of a set, which bounds the bytes of its description.
pub const SET_LAYERS_MAX: u32 = 1_024;

/// What an owner states about a set that it exports.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BlockSetDescription {
    /// Its name.
    pub id: BlockSetId,
    /// What its blocks hold.
    pub content: ContentId,
    /// Which part of each token it holds.
    pub tensor_parallel: TensorParallel,
    /// Which layout.
    pub form: LayoutForm,
    /// Dimensions of this rank's blocks. The alignment counts from the start of each region.
    pub config: LayoutConfig,
    /// Where.
    pub memory: SetMemory,
}

/// A checked description of a set: where each region of each block lies, in its owner's addresses.
///
/// No arithmetic on it overflows, and each region lies in the stated memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BlockSetLayout {
    id: BlockSetId,
    fence: Fence,
    content: ContentId,
    tensor_parallel: TensorParallel,
    layout: AnyLayout,
    memory: SetMemory,
}

/// A region of a block, in its owner's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockDescriptor {
    /// The block.
    pub block: SlotId,
    /// The layer.
    pub layer: u32,
    /// 0 for keys, 1 for values; 0 where one tensor holds both.
    pub outer: u32,
    /// Where it lies.
    pub range: AddressRange,
}

impl BlockSetLayout {
    /// The layout that is described.
    ///
    /// # Errors
    /// [`BlockSetError`] names the field that is not accepted, or contradicts others.
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

    /// Its name among its owner's sets.
    #[must_use]
    pub const fn id(&self) -> BlockSetId {
        self.id
    }

    /// Which of the owner's sets of that name it is.
    #[must_use]
    pub const fn fence(&self) -> Fence {
        self.fence
    }

    /// What its blocks hold.
    #[must_use]
    pub const fn content(&self) -> ContentId {
        self.content
    }

    /// Which part of each token it holds.
    #[must_use]
    pub const fn tensor_parallel(&self) -> TensorParallel {
        self.tensor_parallel
    }

    /// Where blocks lie within the memory.
    #[must_use]
    pub const fn layout(&self) -> &AnyLayout {
        &self.layout
    }

    /// The memory.
    #[must_use]
    pub const fn memory(&self) -> &SetMemory {
        &self.memory
    }

    /// Dimensions of its blocks.
    #[must_use]
    pub fn config(&self) -> &LayoutConfig {
        self.layout.config()
    }

    /// Number of blocks.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        self.config().num_blocks
    }

    /// The addresses of `bytes` bytes from `offset` of an allocation on; none if they don't lie in its memory.
    #[must_use]
    pub fn addresses(&self, allocation: u32, offset: u64, bytes: u64) -> Option<AddressRange> {
        let memory = self.memory.ranges.get(allocation as usize)?;
        let end = offset.checked_add(bytes)?;
        // The end of the memory fits into 64 bits, so the sum does.
        (end <= memory.bytes).then(|| AddressRange { address: memory.address + offset, bytes })
    }

    /// The addresses of one region of a block.
    ///
    /// # Errors
    /// [`LayoutError::OutOfRange`] if there is no such block, layer or outer index.
    pub fn region(
        &self,
        block: SlotId,
        layer: u32,
        outer: u32,
    ) -> Result<AddressRange, LayoutError> {
        let Region { allocation, offset, bytes } = self.layout.region(block.0, layer, outer)?;
        let range = self.addresses(allocation, offset, bytes);
        // Memory is at least as large as the layout, or the set was refused.
        range.ok_or(LayoutError::Overflow { field: "address" })
    }

    /// All regions of `blocks`, by block, layer and outer index. Blocks that are out of range have none.
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
