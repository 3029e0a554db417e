use super::CopyError;
use futures::stream::BoxStream;
use kvasir_proto::convert::{DumpQuery, ListedWorker, WorkerDumpPart};
use std::fmt;

/// Parts of a dump as they come; an error is the last.
pub type DumpParts = BoxStream<'static, Result<WorkerDumpPart, CopyError>>;

/// Pages of a list of workers as they come; an error is the last.
pub type ListPages = BoxStream<'static, Result<Vec<ListedWorker>, CopyError>>;

/// Another replica of the same shard.
pub trait Sibling: fmt::Debug + Send + Sync {
    /// Where it is.
    fn url(&self) -> &str;

    /// Its workers. One that cannot be read is left out.
    fn list(&self) -> ListPages;

    /// All that it holds of a worker.
    fn dump(&self, query: DumpQuery) -> DumpParts;
}
