use super::{AnswerBody, AnswerLimits, PIECE_BYTES_MAX};
use crate::net::peer::{Peer, PeerLimits};
use crate::net::share::{Limit, Reasons};
use crate::net::too_long::{Call, TooLong};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, Full};
use prometheus_client::metrics::gauge::Gauge;
use std::sync::Arc;
use tonic::Status;
use tonic::codegen::Bytes;
use tonic::codegen::http::Uri;

const LARGE_MAX: usize = 4 * PIECE_BYTES_MAX;

struct Port {
    limits: AnswerLimits,
    large: Gauge,
    peer: Arc<Peer>,
}

type Answer = AnswerBody<http_body_util::combinators::UnsyncBoxBody<Bytes, Status>, ()>;

impl Port {
    fn new() -> Self {
        let large = Gauge::default();
        let limits = AnswerLimits {
            large: Limit::new(LARGE_MAX, large.clone()),
            small: Limit::new(PIECE_BYTES_MAX, Gauge::default()),
            refused: Reasons::default(),
        };
        let own = PeerLimits {
            large_answer_bytes: LARGE_MAX,
            small_answer_bytes: PIECE_BYTES_MAX,
            ..PeerLimits::default()
        };
        Self { limits, large, peer: Arc::new(Peer::new(None, own)) }
    }

    fn answer(&self, bytes: usize) -> Answer {
        let body = Full::new(Bytes::from(vec![7; bytes])).map_err(|never| match never {});
        let call = Call::new(&Uri::from_static("/s/m"), &TooLong::default());
        AnswerBody::new(body.boxed_unsync(), self.limits.clone(), Arc::clone(&self.peer), call, ())
    }
}

async fn next(answer: &mut Answer) -> Frame<Bytes> {
    answer.frame().await.expect("a frame").expect("no error")
}

#[tokio::test]
async fn an_answer_counts_until_its_last_piece_is_gone() {
    let port = Port::new();
    let mut answer = port.answer(LARGE_MAX);
    let mut pieces = Vec::new();
    while !answer.is_end_stream() {
        pieces.push(next(&mut answer).await.into_data().expect("a piece"));
    }
    assert_eq!(pieces.iter().map(Bytes::len).sum::<usize>(), LARGE_MAX);
    drop(answer);
    assert_eq!(port.large.get(), i64::try_from(LARGE_MAX).expect("small"));
    // A second large part is rejected; small parts are not.
    let mut refused = port.answer(PIECE_BYTES_MAX + 1);
    let trailers = next(&mut refused).await.into_trailers().expect("no data");
    assert_eq!(trailers.get("grpc-status").expect("a status"), "8");
    assert!(refused.is_end_stream());
    let small = next(&mut port.answer(PIECE_BYTES_MAX)).await;
    assert!(small.is_data());
    assert!(!port.peer.stalls(1));
    assert!(port.peer.stalls(1));
    drop((small, pieces));
    assert!(!port.peer.stalls(1));
    assert_eq!(port.large.get(), 0);
    let mut answer = port.answer(LARGE_MAX);
    assert!(next(&mut answer).await.is_data());
    drop(answer);
    assert_eq!(port.large.get(), 0, "given up");
}
