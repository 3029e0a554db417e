/// Who registered a worker: whether it stays when the server is started with a configuration
/// that does not have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegisteredBy {
    /// The configuration alone: it goes with its entry there.
    Configuration,
    /// A request, an agent over the broker, or a sibling. It stays until it
    /// is removed, whether or not it is configured too.
    Request,
    /// A checkpoint that an older server wrote does not say: it stays.
    Unknown,
}
