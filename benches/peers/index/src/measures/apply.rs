//! Measures applying a script.

use crate::indexes::Index;
use crate::meter::Spent;
use crate::workload::{Content, Operation, Script};

/// Number of operations that are prepared, untimed, before they are applied.
const BATCH_OPERATIONS: usize = 1_024;

/// Cost of applying blocks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Applied {
    pub(crate) blocks: usize,
    spent: Spent,
}

impl Applied {
    /// Blocks per CPU second.
    pub(crate) fn cpu_rate(&self) -> f64 {
        self.blocks as f64 / self.spent.cpu.as_secs_f64()
    }

    /// Blocks per second.
    pub(crate) fn wall_rate(&self) -> f64 {
        self.blocks as f64 / self.spent.wall.as_secs_f64()
    }

    /// Applies a part of a script.
    pub(crate) fn add<I: Index>(
        &mut self,
        index: &mut I,
        content: &Content,
        script: &Script,
        part: &[Operation],
    ) {
        let mut batch = I::Batch::default();
        for part in part.chunks(BATCH_OPERATIONS) {
            I::prepare(content, script, part, &mut batch);
            self.spent.add(|| index.apply(&mut batch));
            self.blocks += part.iter().map(Operation::blocks).sum::<usize>();
        }
    }
}

/// Applies all of a script.
pub(crate) fn apply<I: Index>(index: &mut I, content: &Content, script: &Script) -> Applied {
    let mut applied = Applied::default();
    applied.add(index, content, script, script.operations());
    applied
}
