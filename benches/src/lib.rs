//! Benches of Kvasir: micro-benches in `benches/` and [`ratios`], the load generator in [`load`].

pub mod load;
pub mod ratios;
