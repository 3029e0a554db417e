//! Benches of Kvasir: micro-benches in `benches/`, the load generator here.

pub mod load;
