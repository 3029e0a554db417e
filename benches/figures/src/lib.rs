//! Data format that the parts of the benches pass to the report of all benches.
//!
//! - [`part`]: targets (bars), tables and plots, as data;
//! - [`figure`]: medians over trials;
//! - [`raw`]: output of trials, one file each, from which parts are made;
//! - [`mod@table`][], [`plot`]: tables and plots;
//! - [`svg()`]: draws plots;
//! - [`memory`]: the amount of memory;
//! - [`number`]: formats numbers for people;
//! - [`random`]: reproducible pseudo-random numbers.

pub mod figure;
pub mod memory;
pub mod number;
pub mod part;
pub mod plot;
pub mod random;
pub mod raw;
pub mod table;

mod svg;

pub use figure::{Figure, Side};
pub use part::{Bar, Incident, Limit, Part, Section, Verdict, bar_table};
pub use plot::{Axis, Plot, Scale, Series};
pub use raw::{Outcome, Raw, print_part};
pub use svg::svg;
pub use table::Table;
