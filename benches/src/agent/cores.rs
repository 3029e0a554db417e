//! Assigns one core to the agent, and the other cores to all other threads.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Processors on which threads may run. Threads started later inherit the assignment.
#[derive(Debug, Clone, Copy)]
pub struct Cores {
    /// Processors of the agent and of the others; none with a single processor, or without pinning.
    split: Option<(CpuSet, CpuSet)>,
}

impl Cores {
    /// Assigns the first allowed processor to the agent, if there is another one.
    pub fn split(wanted: bool) -> Result<Self> {
        let all = sched_getaffinity(None).context("ask for the processors that may be used")?;
        let mut numbers = (0..CpuSet::MAX_CPU).filter(|number| all.is_set(*number));
        let mut agents = CpuSet::new();
        let mut others = all;
        let first = numbers.next().filter(|_| wanted && all.count() > 1);
        let split = first.map(|number| {
            agents.set(number);
            others.unset(number);
            (agents, others)
        });
        Ok(Self { split })
    }

    /// The assignment as text.
    pub const fn text(&self) -> &'static str {
        match self.split {
            Some(_) => "the agent on a processor of its own",
            None => "the agent on any processor",
        }
    }

    /// Moves this thread, and threads it starts, to the agent's processor.
    pub fn enter_agents(&self) -> Result<()> {
        self.split.map_or(Ok(()), |(agents, _)| enter(&agents))
    }

    /// Moves this thread, and threads it starts, to the other processors.
    pub fn enter_others(&self) -> Result<()> {
        self.split.map_or(Ok(()), |(_, others)| enter(&others))
    }
}

fn enter(cores: &CpuSet) -> Result<()> {
    sched_setaffinity(None, cores).context("choose a processor")
}
