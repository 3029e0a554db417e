//! What programs and libraries of Kvasir share, however small they are.
//!
//! - [`tasks`]: tasks by name, each joined.
//! - [`causes`]: an error with all its causes, in one line.

pub mod causes;
pub mod tasks;
