use super::CopyError;
use futures::stream::BoxStream;
use kvasir_proto::convert::{DumpQuery, ListedWorker, WorkerDumpPart};
use std::fmt;

/// Parts of a dump, in order of arrival. An error is the last item.
pub type DumpParts = BoxStream<'static, Result<WorkerDumpPart, CopyError>>;

/// Pages of a list of workers, in order of arrival. An error is the last item.
pub type ListPages = BoxStream<'static, Result<Vec<ListedWorker>, CopyError>>;

/// Another replica of the same shard.
pub trait Sibling: fmt::Debug + Send + Sync {
    /// URL of the sibling.
    fn url(&self) -> &str;

    /// Workers of the sibling, without unreadable ones.
    fn list(&self) -> ListPages;

    /// Dumps all blocks of a worker.
    fn dump(&self, query: DumpQuery) -> DumpParts;
}
