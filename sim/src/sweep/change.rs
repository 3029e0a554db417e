//! Parses changes to engines and routing from the command line.

use super::options::ClusterOptions;
use super::way::{MILLISECOND, Policy, Way};
use anyhow::{Context, Result, ensure};
use std::fmt;
use std::str::FromStr;

/// One row of the table: a set of changes.
#[derive(Debug, Clone, PartialEq)]
pub struct WhatIf {
    text: String,
    changes: Vec<Change>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Change {
    Workers(Amount),
    Cache(Amount),
    Host(Amount),
    Disk(Amount),
    Weight(f64),
    LoadWeight(f64),
    Traffic(f64),
    UnstatedCapacity,
    Routers(usize),
    StalenessMillis(u64),
    PrefillWorkers(usize),
    Policy(Policy),
}

/// A change of a number.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Amount {
    /// The new value.
    To(f64),
    /// The factor.
    Times(f64),
    /// The difference, positive or negative.
    By(f64),
}

/// Setup of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setup {
    /// Engines and cost weights.
    pub options: ClusterOptions,
    /// Routing of requests.
    pub way: Way,
    /// Factor for the workload's request rate.
    pub traffic: f64,
}

// === impl WhatIf ===

impl WhatIf {
    /// Applies the changes to a setup.
    ///
    /// # Errors
    /// If the resulting setup is invalid.
    pub fn apply(&self, mut setup: Setup) -> Result<Setup> {
        for change in &self.changes {
            change.apply(&mut setup);
        }
        let Setup { options, way, traffic } = setup;
        let what = &self.text;
        ensure!((1..=1_024).contains(&options.engines), "{what}: workers must be 1 to 1024");
        ensure!(options.engine.capacity_blocks > 0, "{what}: no cache is left");
        ensure!(way.prefill_engines < options.engines, "{what}: no worker is left to answer");
        ensure!((1..=64).contains(&way.routers), "{what}: routers must be 1 to 64");
        ensure!(traffic.is_normal() && traffic > 0.0, "{what}: traffic must be above 0");
        options.cost.check().with_context(|| what.clone())?;
        Ok(setup)
    }
}

impl FromStr for WhatIf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let changes = text.split(',').map(Change::from_str).collect::<Result<_, _>>()?;
        Ok(Self { text: text.to_owned(), changes })
    }
}

impl fmt::Display for WhatIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

// === impl Change ===

impl Change {
    fn apply(self, Setup { options, way, traffic }: &mut Setup) {
        let blocks = |tokens: Amount, blocks: &mut usize, block_size: usize| {
            *blocks = tokens.of(*blocks * block_size) / block_size;
        };
        let block_size = options.engine.block_size;
        match self {
            Self::Workers(amount) => options.engines = amount.of(options.engines),
            Self::Cache(amount) => blocks(amount, &mut options.engine.capacity_blocks, block_size),
            Self::Host(amount) => blocks(amount, &mut options.engine.host_blocks, block_size),
            Self::Disk(amount) => blocks(amount, &mut options.engine.disk_blocks, block_size),
            Self::Weight(weight) => options.cost.overlap_score_weight = weight,
            Self::LoadWeight(weight) => options.cost.active_prefill_weight = weight,
            Self::Traffic(factor) => *traffic *= factor,
            Self::UnstatedCapacity => options.states_capacity = false,
            Self::Routers(routers) => way.routers = routers,
            Self::StalenessMillis(millis) => way.staleness = millis.saturating_mul(MILLISECOND),
            Self::PrefillWorkers(engines) => way.prefill_engines = engines,
            Self::Policy(policy) => way.policy = policy,
        }
    }
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let bad = || format!("cannot read {text:?}");
        let number = || value.parse::<f64>().map_err(|_error| bad());
        let whole = || value.parse::<usize>().map_err(|_error| bad());
        let times = || value.strip_suffix('x').unwrap_or(value).parse().map_err(|_error| bad());
        Ok(match name {
            "workers" => Self::Workers(value.parse().map_err(|()| bad())?),
            "cache" => Self::Cache(value.parse().map_err(|()| bad())?),
            "host" => Self::Host(value.parse().map_err(|()| bad())?),
            "disk" => Self::Disk(value.parse().map_err(|()| bad())?),
            "no-host" if value.is_empty() => Self::Host(Amount::To(0.0)),
            "no-disk" if value.is_empty() => Self::Disk(Amount::To(0.0)),
            "unstated-capacity" if value.is_empty() => Self::UnstatedCapacity,
            "weight" => Self::Weight(number()?),
            "load-weight" => Self::LoadWeight(number()?),
            "traffic" => Self::Traffic(times()?),
            "routers" => Self::Routers(whole()?),
            "staleness-ms" => Self::StalenessMillis(value.parse().map_err(|_error| bad())?),
            "prefill-workers" => Self::PrefillWorkers(whole()?),
            "policy" => Self::Policy(Policy::named(value).ok_or_else(bad)?),
            _ => return Err(bad()),
        })
    }
}

// === impl Amount ===

impl Amount {
    fn of(self, now: usize) -> usize {
        let now = now as f64;
        // A negative number becomes 0, which is rejected where it is invalid.
        match self {
            Self::To(value) => value.round() as usize,
            Self::Times(factor) => (now * factor).round() as usize,
            Self::By(difference) => (now + difference).round() as usize,
        }
    }
}

impl FromStr for Amount {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let finite = |text: &str| {
            let value = text.parse::<f64>().ok();
            value.filter(|value| value.abs() <= 1e12).ok_or(())
        };
        if let Some(factor) = text.strip_suffix('x') {
            return finite(factor).map(Self::Times);
        }
        if text.starts_with(['+', '-']) {
            finite(text).map(Self::By)
        } else {
            finite(text).map(Self::To)
        }
    }
}

#[cfg(test)]
#[path = "change_test.rs"]
mod change_test;
