//! Small utilities that programs and libraries of Kvasir share.
//!
//! - [`tasks`]: named tasks that are always joined.
//! - [`causes`]: formats an error with all its causes in one line.

pub mod causes;
pub mod tasks;
