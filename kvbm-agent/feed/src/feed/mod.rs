//! One source as the tasks of an agent share it: who it is, its journal behind a lock that is held for
//! bounded steps only, and notifications of what is new. Publishing never waits for a peer.

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
