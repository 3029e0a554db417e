//! Micro-benches of Kvasir; see `benches/`.
