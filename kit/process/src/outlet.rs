//! Answer streams that a task sends through a bounded queue.

use futures::{Stream, StreamExt, future, stream};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// End of an answer stream: with one more answer, without one, or with an error.
pub type Last<T> = Result<Option<T>, Status>;

/// The sending end of an answer stream. The stream's end is sent beside the queue, so that a client with a full queue
/// receives it too: an interrupted stream never looks complete.
#[derive(Debug)]
pub struct Outlet<T> {
    /// Answers that wait for the client to read them.
    pub queue: mpsc::Sender<T>,
    last: oneshot::Sender<Last<T>>,
}

impl<T> Outlet<T> {
    /// Ends the stream, after the answers in the queue.
    pub fn end(self, last: Last<T>) {
        drop(self.queue);
        // Fails if the client is gone.
        let _gone = self.last.send(last);
    }
}

/// Creates an answer stream with a queue of at most `queued_max` answers: its sender, and the stream.
pub fn outlet<T: Send>(
    queued_max: usize,
) -> (Outlet<T>, impl Stream<Item = Result<T, Status>> + Send) {
    let (queue, answers) = mpsc::channel(queued_max);
    let (last, end) = oneshot::channel();
    let end = stream::once(end).filter_map(|last: Result<Last<T>, _>| {
        let last = last.unwrap_or_else(|_lost| Err(Status::internal("the stream broke off")));
        future::ready(last.transpose())
    });
    let answers = ReceiverStream::new(answers).map(Ok).chain(end);
    (Outlet { queue, last }, answers)
}
