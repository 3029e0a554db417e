//! What the parts of the benches hand over to the report of all of them.
//!
//! - [`part`]: bars that were to be reached, tables and plots, as data;
//! - [`figure`]: medians over trials;
//! - [`raw`]: what trials printed, a file each, of which parts are made;
//! - [`mod@table`][], [`plot`]: tables and plots;
//! - [`memory`]: how much of it there is;
//! - [`number`]: figures as people write them;
//! - [`random`]: numbers that look random.

pub mod figure;
pub mod memory;
pub mod number;
pub mod part;
pub mod plot;
pub mod random;
pub mod raw;
pub mod table;

pub use figure::{Figure, Side};
pub use part::{Bar, Incident, Limit, Part, Section, Verdict, bar_table};
pub use plot::{Axis, Plot, Scale, Series};
pub use raw::{Outcome, Raw, print_part};
pub use table::Table;
