//! Tables and plots of bench reports.
//!
//! - [`table`]: markdown tables, aligned so that they read well as text;
//! - [`plot`]: lines (distributions, series) and groups of bars, as SVG;
//! - [`machine`]: what a figure was measured on;
//! - [`number`]: figures as people write them.

pub mod machine;
pub mod number;
pub mod plot;
pub mod table;

pub use machine::Machine;
pub use plot::{Axes, PlotError, Scale, Series};
pub use table::Table;
