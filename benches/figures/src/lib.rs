//! What the parts of the benches hand over to the report of all of them.
//!
//! - [`part`]: bars that were to be reached, tables and plots, as data;
//! - [`raw`]: what trials printed, a file each, of which parts are made;
//! - [`mod@table`][]: tables;
//! - [`memory`]: how much of it there is;
//! - [`number`]: figures as people write them.

pub mod memory;
pub mod number;
pub mod part;
pub mod raw;
pub mod table;

pub use part::{
    Axes, Bar, Drawing, Incident, Limit, Part, Plot, Scale, Section, Series, Side, Verdict,
};
pub use raw::{Outcome, Raw};
pub use table::Table;
