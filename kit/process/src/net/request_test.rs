use super::{BYTES_PER_SECOND_MIN, IdleLimit, Pace, RequestBody, RequestLimits};
use crate::net::peer::{Peer, PeerLimits};
use crate::net::share::{Limit, Reasons};
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::poll;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use prometheus_client::metrics::gauge::Gauge;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, advance, sleep};
use tonic::codegen::Bytes;
use tonic::{Code, Status};

const SECOND: Duration = Duration::from_secs(1);

/// A stream with a limit of ten, and that limit.
fn asking() -> (Pace, Limit) {
    let streams = Limit::new(10, Gauge::default());
    let limit = IdleLimit { usual: 60 * SECOND, crowded: 5 * SECOND, streams: streams.clone() };
    (Pace::Idle(SECOND, limit), streams)
}

type Part = Result<Frame<Bytes>, Status>;
type Request = RequestBody<StreamBody<UnboundedReceiver<Part>>>;

/// A request, and the gauge of bytes of incomplete messages.
fn request(pace: Pace) -> (UnboundedSender<Part>, Request, Gauge) {
    let (parts, body) = unbounded();
    let held = Gauge::default();
    let message_bytes = Limit::new(10 * BYTES_PER_SECOND_MIN, held.clone());
    let limits = RequestLimits { pace, message_bytes, unread: Reasons::default() };
    let own = PeerLimits {
        message_bytes: 5 * BYTES_PER_SECOND_MIN,
        large_answer_bytes: 10,
        ..PeerLimits::default()
    };
    let peer = Arc::new(Peer::new(None, own));
    (parts, RequestBody::new(StreamBody::new(body), limits, peer), held)
}

#[tokio::test(start_paused = true)]
async fn streams_of_an_old_connection_end_between_messages() {
    for pace in [Pace::Endless(SECOND), asking().0] {
        let (parts, mut stream, _) = request(pace);
        send(&parts, &message(10));
        let rest = message(20);
        send(&parts, &rest[..7]);
        assert_eq!(next(&mut stream).await, Ok(Some(15)));
        stream.peer.aged.cancel();
        assert_eq!(next(&mut stream).await, Ok(Some(7)), "what has come is read");
        assert!(poll!(pin!(stream.frame())).is_pending(), "a message is half there");
        send(&parts, &rest[7..]);
        assert_eq!(next(&mut stream).await, Ok(Some(18)));
        assert_eq!(next(&mut stream).await, Ok(None));
    }
    let (parts, mut idle, _) = request(Pace::Endless(SECOND));
    let aged = idle.peer.aged.clone();
    let began = Instant::now();
    let ended = async {
        sleep(60 * SECOND).await;
        aged.cancel();
    };
    assert_eq!(futures::join!(next(&mut idle), ended).0, Ok(None), "an idle one, too");
    assert_eq!(began.elapsed(), 60 * SECOND);
    drop(parts);
    let (parts, mut single, _) = request(Pace::Single(SECOND));
    single.peer.aged.cancel();
    send(&parts, &message(10));
    assert_eq!(next(&mut single).await, Ok(Some(15)), "one request is answered");
}

/// A message of `length` bytes, as encoded on the wire.
fn message(length: usize) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend(u32::try_from(length).expect("short").to_be_bytes());
    bytes.extend(vec![7; length]);
    bytes
}

fn send(parts: &UnboundedSender<Part>, bytes: &[u8]) {
    let frame = Frame::data(Bytes::copy_from_slice(bytes));
    parts.unbounded_send(Ok(frame)).expect("a request that is read");
}

/// The bytes of the next frame; none at the end.
async fn next(request: &mut Request) -> Result<Option<usize>, Code> {
    let frame = request.frame().await.transpose().map_err(|status| status.code())?;
    Ok(frame.map(|frame| frame.into_data().expect("no trailers").len()))
}

#[tokio::test(start_paused = true)]
async fn a_single_request_must_end_in_time() {
    let (_parts, mut empty, _) = request(Pace::Single(SECOND));
    let began = Instant::now();
    assert_eq!(next(&mut empty).await, Err(Code::DeadlineExceeded));
    assert_eq!(began.elapsed(), SECOND);
    let (parts, mut endless, _) = request(Pace::Single(SECOND));
    send(&parts, &message(10));
    assert_eq!(next(&mut endless).await, Ok(Some(15)));
    assert_eq!(next(&mut endless).await, Err(Code::DeadlineExceeded), "it is whole, but goes on");
}

#[tokio::test(start_paused = true)]
async fn a_large_request_has_more_time() {
    let (parts, mut large, held) = request(Pace::Single(SECOND));
    let bytes = message(4 * BYTES_PER_SECOND_MIN);
    for part in bytes.chunks(BYTES_PER_SECOND_MIN) {
        send(&parts, part);
        assert_eq!(next(&mut large).await, Ok(Some(part.len())));
        let waiting = tokio::time::timeout(SECOND * 9 / 10, next(&mut large)).await;
        assert!(waiting.is_err(), "{waiting:?}");
    }
    assert_eq!(held.get(), 0, "it is whole");
    drop(parts);
    assert_eq!(next(&mut large).await, Ok(None));
}

#[tokio::test(start_paused = true)]
async fn a_message_of_a_stream_must_be_whole_in_time() {
    let (parts, mut stream, held) = request(asking().0);
    let bytes = [message(3), message(0), message(100)].concat();
    let (first, rest) = bytes.split_at(20);
    send(&parts, first);
    assert_eq!(next(&mut stream).await, Ok(Some(20)));
    assert_eq!(held.get(), 7, "of the last message");
    advance(SECOND / 2).await;
    send(&parts, rest);
    assert_eq!(next(&mut stream).await, Ok(Some(rest.len())));
    assert_eq!(held.get(), 0);
    let waiting = tokio::time::timeout(30 * SECOND, next(&mut stream)).await;
    assert!(waiting.is_err(), "nothing is half there");
    send(&parts, &message(1)[..5]);
    assert_eq!(next(&mut stream).await, Ok(Some(5)));
    let began = Instant::now();
    assert_eq!(next(&mut stream).await, Err(Code::DeadlineExceeded));
    assert_eq!(began.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_stream_in_which_nothing_is_asked_ends_without_an_error() {
    let (parts, mut stream, _) = request(asking().0);
    let began = Instant::now();
    for _ in 0..5 {
        send(&parts, &message(1));
        assert_eq!(next(&mut stream).await, Ok(Some(6)));
        let waiting = tokio::time::timeout(59 * SECOND, next(&mut stream)).await;
        assert!(waiting.is_err(), "{waiting:?}");
    }
    assert_eq!(next(&mut stream).await, Ok(None));
    assert!(began.elapsed() <= (5 * 59 + 65) * SECOND, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_idle_stream_ends_sooner_among_many() {
    let (pace, streams) = asking();
    let (parts, mut stream, _) = request(pace);
    let half = streams.take(5);
    send(&parts, &message(1));
    assert_eq!(next(&mut stream).await, Ok(Some(6)));
    let waiting = tokio::time::timeout(30 * SECOND, next(&mut stream)).await;
    assert!(waiting.is_err(), "there is room for others");
    let more = streams.take(1);
    for _ in 0..20 {
        send(&parts, &message(1));
        assert_eq!(next(&mut stream).await, Ok(Some(6)));
        // While an answer is being made, no timeout runs.
        advance(20 * SECOND).await;
        let waiting = tokio::time::timeout(4 * SECOND, next(&mut stream)).await;
        assert!(waiting.is_err(), "it is busy");
    }
    let began = Instant::now();
    assert_eq!(next(&mut stream).await, Ok(None));
    assert!(began.elapsed() <= 6 * SECOND, "{:?}", began.elapsed());
    drop((half, more));
}

#[tokio::test]
async fn what_is_there_in_part_is_bounded() {
    let (parts, mut stream, held) = request(asking().0);
    let bytes = message(6 * BYTES_PER_SECOND_MIN);
    let (first, rest) = bytes.split_at(5 * BYTES_PER_SECOND_MIN);
    send(&parts, first);
    assert_eq!(next(&mut stream).await, Ok(Some(first.len())));
    assert_eq!(held.get(), i64::try_from(first.len()).expect("short"));
    send(&parts, &rest[..1]);
    assert_eq!(next(&mut stream).await, Err(Code::ResourceExhausted));
    drop(stream);
    assert_eq!(held.get(), 0);
    let (parts, mut stream, held) = request(asking().0);
    send(&parts, &bytes);
    assert_eq!(next(&mut stream).await, Ok(Some(bytes.len())), "whole at once");
    assert_eq!(held.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_more_is_asked_while_large_answers_wait() {
    let (parts, mut stream, _) = request(asking().0);
    let answers = stream.peer.large_answer_bytes.clone();
    let five = answers.take(5);
    send(&parts, &message(1));
    assert_eq!(next(&mut stream).await, Ok(Some(6)));
    let six = answers.take(1);
    send(&parts, &message(1));
    {
        let mut asked = pin!(next(&mut stream));
        assert!(poll!(&mut asked).is_pending());
        drop(six);
        assert_eq!(asked.await, Ok(Some(6)));
    }
    let (parts, mut publisher, _) = request(Pace::Endless(SECOND));
    let all = publisher.peer.large_answer_bytes.take(10);
    send(&parts, &message(1));
    assert_eq!(next(&mut publisher).await, Ok(Some(6)), "whose answers are small");
    drop((five, all));
}
