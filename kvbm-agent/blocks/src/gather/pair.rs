use super::side::CopyRank;
use super::{CopyError, CopyOp, CopyPlace};
use crate::identity::SlotId;
use crate::layout::{BlockLayout, LayerOrder, LayoutError, LayoutForm};
use std::ops::Range;

/// A source rank and a destination rank that have elements of each token in common.
#[derive(Debug, Clone)]
pub(super) struct Pair<'a> {
    source: CopyRank<'a>,
    destination: CopyRank<'a>,
    /// The common elements of a token, counted over all parts of the group.
    shared: Range<u64>,
}

/// One or more consecutive tokens of one layer and outer index.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    layer: u32,
    outer: u32,
    /// Index of the first token, among all copied tokens.
    token: u64,
}

impl<'a> Pair<'a> {
    /// Returns `None` if the two ranks have no element in common.
    pub(super) fn new(source: CopyRank<'a>, destination: CopyRank<'a>) -> Option<Self> {
        let from = source.elements();
        let to = destination.elements();
        let shared = from.start.max(to.start)..from.end.min(to.end);
        (!shared.is_empty()).then_some(Self { source, destination, shared })
    }

    /// Number of tokens that are contiguous on both sides. It is the smaller block's tokens if each side has exactly
    /// the common elements, else 1.
    fn run_tokens(&self) -> u64 {
        let source = self.source.config();
        let destination = self.destination.config();
        let elements = self.shared.end - self.shared.start;
        let is_whole =
            elements == u64::from(source.inner_dim) && elements == u64::from(destination.inner_dim);
        if is_whole { source.page_size.min(destination.page_size).into() } else { 1 }
    }

    /// Number of ranges that the pair copies.
    pub(super) fn pieces(&self) -> u64 {
        let config = self.destination.config();
        let regions = u64::from(config.num_layers) * u64::from(config.outer_dim);
        // The token count is a multiple of both block sizes, so runs divide it.
        (self.destination.tokens() / self.run_tokens()).saturating_mul(regions)
    }

    /// Emits all copies of the pair in the memory order of the destination, assuming that its blocks are in memory
    /// order. Adjacent ranges are therefore emitted one after another.
    pub(super) fn each(
        &self,
        mut emit: impl FnMut(CopyOp) -> Result<(), CopyError>,
    ) -> Result<(), CopyError> {
        let config = self.destination.config();
        let layers = config.num_layers;
        let outers = config.outer_dim;
        let page = u64::from(config.page_size);
        let blocks = self.destination.blocks.len() as u64;
        let run = self.run_tokens();
        let mut block = |layer: u32, outer: u32, block: u64| -> Result<(), CopyError> {
            for at in 0..page / run {
                let token = block * page + at * run;
                emit(self.op(Stretch { layer, outer, token }, run)?)?;
            }
            Ok(())
        };
        match self.destination.layout.layout().form() {
            LayoutForm::FullyContiguous => {
                for at in 0..blocks {
                    for layer in 0..layers {
                        (0..outers).try_for_each(|outer| block(layer, outer, at))?;
                    }
                }
            }
            LayoutForm::LayerSeparate(LayerOrder::BlockContiguous) => {
                for layer in 0..layers {
                    for at in 0..blocks {
                        (0..outers).try_for_each(|outer| block(layer, outer, at))?;
                    }
                }
            }
            LayoutForm::LayerSeparate(LayerOrder::OuterContiguous) => {
                for layer in 0..layers {
                    for outer in 0..outers {
                        (0..blocks).try_for_each(|at| block(layer, outer, at))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Builds the copy of `run` tokens that begin at `stretch`, with its place on both sides.
    fn op(&self, stretch: Stretch, run: u64) -> Result<CopyOp, CopyError> {
        let width = u64::from(self.destination.config().dtype_width_bytes);
        Ok(CopyOp {
            source: self.place(&self.source, stretch)?,
            destination: self.place(&self.destination, stretch)?,
            // At most the bytes of a region, which do not overflow.
            bytes: run * (self.shared.end - self.shared.start) * width,
        })
    }

    /// Returns the place of a range on one side. The sums cannot overflow, because the place is in a region of a
    /// checked layout.
    fn place(&self, at: &CopyRank<'_>, stretch: Stretch) -> Result<CopyPlace, LayoutError> {
        let config = at.config();
        let page = u64::from(config.page_size);
        let index = stretch.token / page;
        let token = stretch.token % page;
        // The caller has compared blocks and tokens of both sides, so the index is valid.
        let block = usize::try_from(index).ok().and_then(|index| at.blocks.get(index)).copied();
        let block = block.unwrap_or(SlotId(u32::MAX));
        let region = at.layout.layout().region(block.0, stretch.layer, stretch.outer)?;
        let before = self.shared.start - at.elements().start;
        let elements = token * u64::from(config.inner_dim) + before;
        let offset = region.offset + elements * u64::from(config.dtype_width_bytes);
        let rank = at.parallel().rank;
        Ok(CopyPlace { rank, block, allocation: region.allocation, offset })
    }
}
