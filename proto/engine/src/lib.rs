//! Under construction.
pub mod decode;
pub mod normalise;
pub mod sequence;
pub mod link;
pub mod zmtp;
