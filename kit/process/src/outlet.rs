//! Streams of answers that a task sends.

use futures::{Stream, StreamExt, future, stream};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// How a stream of answers ends: with one more answer, plainly, or with an error.
pub type Last<T> = Result<Option<T>, Status>;

/// The task's end of a stream of answers. The end of the stream is sent beside the queue, so that a client
/// whose queue is full gets it too: a stream that was cut off never looks complete.
#[derive(Debug)]
pub struct Outlet<T> {
    /// Answers that wait to be taken by the client.
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

/// A stream of answers that queues at most so many.
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
