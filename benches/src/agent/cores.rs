//! A core for the agent, the others for everybody else.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Which processors threads may run on. Those that a thread starts inherit what it may.
#[derive(Debug, Clone, Copy)]
pub struct Cores {
    /// The agent's, and the others'; none where there is one only, or it is not wanted.
    split: Option<(CpuSet, CpuSet)>,
}

impl Cores {
    /// The first processor that we may use for the agent, if there is another.
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

    /// In words.
    pub const fn text(&self) -> &'static str {
        match self.split {
            Some(_) => "the agent on a processor of its own",
            None => "the agent on any processor",
        }
    }

    /// This thread, and those it starts, run where the agent may.
    pub fn enter_agents(&self) -> Result<()> {
        self.split.map_or(Ok(()), |(agents, _)| enter(&agents))
    }

    /// This thread, and those it starts, run where the others may.
    pub fn enter_others(&self) -> Result<()> {
        self.split.map_or(Ok(()), |(_, others)| enter(&others))
    }
}

fn enter(cores: &CpuSet) -> Result<()> {
    sched_setaffinity(None, cores).context("choose a processor")
}
