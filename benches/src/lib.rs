//! Benchmarks of Kvasir: micro-benchmarks in `benches/` and [`ratios`], the load generator in [`load`], the agent end
//! to end in [`agent`], decisions of the router in [`router`].

pub mod agent;
pub mod events;
pub mod load;
pub mod ratios;
pub mod router;
