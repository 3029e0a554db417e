//! Answers that are ready before the request's body is read.
//!
//! hyper closes the connection of a request whose body has an unread rest. Its answer does not announce the end. A client
//! that then sends its next request on this connection loses that request. So the rest of a body is read and discarded
//! before the answer is sent, within limits and until the server stops. Otherwise the answer says `connection: close`.

use super::BoxError;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, EXPECT, HeaderValue};
use hyper::{Request, Response};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Maximum bytes of a body that are read and discarded.
const DRAINED_BYTES_MAX: usize = 64 << 20;
/// Maximum time to read and discard the rest of a body.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// The body of a request. The port reads the rest that a handler leaves.
#[derive(Debug)]
pub struct DrainedBody {
    rest: Option<(Unread, oneshot::Sender<Unread>)>,
}

/// A body that has not been read to its end.
#[derive(Debug)]
struct Unread {
    body: Incoming,
    /// The client sends the body only when it is asked to. The first read asks it.
    waits: bool,
}

/// Receives what a handler has left unread of a request's body.
#[derive(Debug)]
pub(super) struct Rest(oneshot::Receiver<Unread>);

/// Gives a request a body that a handler reads, and returns the receiver of the rest of this body.
pub(super) fn split(request: Request<Incoming>) -> (Request<DrainedBody>, Rest) {
    let (back, rest) = oneshot::channel();
    let waits = request.headers().contains_key(EXPECT);
    let request = request.map(|body| DrainedBody {
        rest: (!body.is_end_stream()).then_some((Unread { body, waits }, back)),
    });
    (request, Rest(rest))
}

// === impl DrainedBody ===

impl Body for DrainedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some((unread, _back)) = &mut self.rest else { return Poll::Ready(None) };
        unread.waits = false;
        let frame = ready!(Pin::new(&mut unread.body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.rest = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.rest.as_ref().is_none_or(|(unread, _back)| unread.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.as_ref();
        rest.map_or_else(|| SizeHint::with_exact(0), |(unread, _back)| unread.body.size_hint())
    }
}

impl Drop for DrainedBody {
    fn drop(&mut self) {
        if let Some((unread, back)) = self.rest.take()
            && !unread.body.is_end_stream()
        {
            let _connection_ended = back.send(unread);
        }
    }
}

// === impl Rest ===

impl Rest {
    /// Reads and discards the rest of the body, or lets the answer announce the end of the connection. Leaves bodies
    /// alone that the handler still reads, or has read.
    pub(super) async fn drain<B>(
        mut self,
        mut response: Response<B>,
        stop: &CancellationToken,
    ) -> Response<B> {
        let Ok(Unread { body, waits }) = self.0.try_recv() else { return response };
        let reading = stop.run_until_cancelled(timeout(DRAIN_TIMEOUT, read_rest(body)));
        let is_read = !waits && matches!(reading.await, Some(Ok(true)));
        if !is_read {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Reads a body, and returns whether it ended within the limit.
async fn read_rest<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin>(mut body: B) -> bool {
    let mut discarded = 0;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        discarded += frame.data_ref().map_or(0, Bytes::len);
        if discarded > DRAINED_BYTES_MAX {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{DRAINED_BYTES_MAX, DrainedBody};
    use crate::http::serve_connection;
    use crate::net::{ConnectionLimits, ConnectionMetrics, LimitedListener, Patience, PeerLimits};
    use crate::tls::Accepting;
    use http_body_util::{BodyExt, Full};
    use hyper::body::Bytes;
    use hyper::service::service_fn;
    use hyper::{Request, Response};
    use std::convert::Infallible;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;
    use tokio::task::JoinSet;
    use tokio_util::sync::CancellationToken;

    const LONG: Duration = Duration::from_secs(60);

    /// A server that answers "no" to every request, and its client.
    struct Pair {
        client: TcpStream,
        /// Receives a message from the server when an answer is ready.
        is_answered: mpsc::Receiver<()>,
        stop: CancellationToken,
        _serving: JoinSet<()>,
    }

    /// Starts a server that reads `pieces` pieces of each body.
    async fn pair(pieces: usize) -> Pair {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let limits = ConnectionLimits {
            connections: 1,
            patience: Patience { first_byte: LONG, idle: LONG, untaken: LONG },
            peer: PeerLimits::default(),
        };
        let listener = LimitedListener::new(listener, limits, ConnectionMetrics::default());
        let (client, socket) = tokio::join!(TcpStream::connect(address), async {
            Accepting::new(listener, None).accept().await
        });
        let (answered, is_answered) = mpsc::channel(1);
        let service = service_fn(move |mut request: Request<DrainedBody>| {
            let answered = answered.clone();
            async move {
                for _ in 0..pieces {
                    request.body_mut().frame().await;
                }
                drop(request);
                answered.send(()).await.expect("a client");
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"no"))))
            }
        });
        let stop = CancellationToken::new();
        let mut serving = JoinSet::new();
        serving.spawn(serve_connection(socket, service, (LONG, None), stop.clone()));
        let client = client.expect("a connection");
        Pair { client, is_answered, stop, _serving: serving }
    }

    fn head(headers: &str) -> Vec<u8> {
        format!("POST / HTTP/1.1\r\nhost: a\r\n{headers}\r\n\r\n").into_bytes()
    }

    /// The next answer, in small letters.
    async fn answer(client: &mut TcpStream) -> String {
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\nno") {
            text.push(client.read_u8().await.expect("an answer"));
        }
        String::from_utf8(text).expect("text").to_lowercase()
    }

    #[tokio::test]
    async fn a_connection_outlives_answers_that_need_no_body() {
        let Pair { mut client, mut is_answered, _serving, .. } = pair(0).await;
        let sized = [0, 1, 100_000, 3 << 20];
        let sized = sized.map(|size| (format!("content-length: {size}"), vec![b'x'; size]));
        let chunked = ["0\r\n\r\n", "2\r\nxy\r\n1\r\nz\r\n0\r\n\r\n"];
        let chunked = chunked.map(|body| ("transfer-encoding: chunked".to_owned(), body.into()));
        for (headers, body) in sized.into_iter().chain(chunked) {
            client.write_all(&head(&headers)).await.expect("a head");
            is_answered.recv().await.expect("an answer");
            client.write_all(&body).await.expect("a body");
            let text = answer(&mut client).await;
            assert!(!text.contains("connection: close"), "{headers}: {text}");
        }
    }

    #[tokio::test]
    async fn a_client_that_waits_is_not_asked_for_a_body_that_nobody_reads() {
        let waits = head("content-length: 5\r\nexpect: 100-continue");
        let Pair { client: mut waiting, is_answered: _ready, _serving, .. } = pair(0).await;
        waiting.write_all(&waits).await.expect("a head");
        let text = answer(&mut waiting).await;
        assert!(text.starts_with("http/1.1 200") && text.contains("connection: close"), "{text}");
        assert_eq!(waiting.read(&mut [0]).await.expect("the end"), 0);
        // Once it was asked, the rest of its body is read.
        let Pair { mut client, mut is_answered, _serving, .. } = pair(1).await;
        client.write_all(&waits).await.expect("a head");
        let mut asked = [0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
        client.read_exact(&mut asked).await.expect("a demand");
        client.write_all(b"ab").await.expect("a piece");
        is_answered.recv().await.expect("an answer");
        client.write_all(b"cde").await.expect("the rest");
        let text = answer(&mut client).await;
        assert!(text.starts_with("http/1.1 200") && !text.contains("connection: close"), "{text}");
    }

    #[tokio::test]
    async fn a_body_beyond_the_limit_ends_its_connection() {
        let Pair { client, is_answered: _ready, _serving, .. } = pair(0).await;
        let (mut reading, mut writing) = client.into_split();
        let size = DRAINED_BYTES_MAX + (1 << 20);
        let sending = async {
            writing.write_all(&head(&format!("content-length: {size}"))).await.expect("a head");
            // The server may end the connection before the last byte.
            let _sent = writing.write_all(&vec![b'x'; size]).await;
        };
        let receiving = async {
            let mut text = [0; 200];
            let count = reading.read(&mut text).await.expect("an answer");
            String::from_utf8_lossy(&text[..count]).to_lowercase()
        };
        let ((), text) = tokio::join!(sending, receiving);
        assert!(text.contains("connection: close"), "{text}");
    }

    #[tokio::test]
    async fn a_server_that_stops_waits_for_no_body() {
        let Pair { mut client, mut is_answered, stop, _serving } = pair(0).await;
        client.write_all(&head("content-length: 5")).await.expect("a head");
        is_answered.recv().await.expect("an answer");
        stop.cancel();
        let text = answer(&mut client).await;
        assert!(text.contains("connection: close"), "{text}");
    }
}
