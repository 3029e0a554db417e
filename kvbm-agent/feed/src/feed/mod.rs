//! One source, shared by the tasks of an agent: its identity, its journal and notifications of new batches. The
//! journal's lock has bounded critical sections. Publishing never waits for a peer.

mod dump;
mod error;
mod image;
mod source;
mod turns;

pub use dump::FeedDump;
pub use error::FeedError;
pub use image::write_images;
pub use source::{Feed, FeedState, News, SourceConfig, new_incarnation};
pub use turns::Turn;
