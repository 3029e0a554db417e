/// Who registered a worker: decides whether the worker stays when the server starts with a configuration that lacks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisteredBy {
    /// Only the configuration: the worker is removed when its entry is removed there.
    Configuration,
    /// A request, an agent over the broker, or a sibling. The worker stays until it is removed, even if it is also
    /// configured.
    Request,
    /// Unknown, because the checkpoint of an older server did not record it. The worker stays.
    Unknown,
}
