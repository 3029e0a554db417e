/// Who registered a worker. It decides whether the worker stays when the server starts with a configuration
/// without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisteredBy {
    /// The configuration alone: the worker is removed with its entry there.
    Configuration,
    /// A request, an agent over the broker, or a sibling. The worker stays until it is removed, even if it is
    /// configured too.
    Request,
    /// A checkpoint of an older server, which did not record it: the worker stays.
    Unknown,
}
