//! Small utilities that programs and libraries of Kvasir share.
//!
//! - [`tasks`]: named tasks that are always joined.
//! - [`group`]: tasks that stop together.
//! - [`causes`]: formats an error with all its causes in one line.

pub mod causes;
pub mod group;
pub mod tasks;
