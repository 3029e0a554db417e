//! Tests both sockets against scripted faulty peers. A fault must end in an error within the limits, and the
//! next connection must work.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

use super::frame::FrameKind;
use super::test_peer::{
    TEST_TIMEOUT, TestPeer, endpoint, frame, greeting, listener, long_header, message, patient,
    poll_once, ready,
};
use super::{
    Attach, DealerSocket, Endpoint, Limits, LinkError, Message, ProtocolError, SubEvent, SubSocket,
};

const TOPIC: &[u8] = b"kv@";
const TIB: u64 = 1 << 40;
/// The limit under test. Correct peers on a busy machine must stay below it.
const SHORT: Duration = Duration::from_millis(400);

fn subscribe(endpoint: Endpoint, limits: Limits) -> SubSocket {
    SubSocket::new(Attach::Connect(endpoint), Bytes::from_static(TOPIC), limits)
}

fn owned(frames: &[&[u8]]) -> Message {
    frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect()
}

/// Runs peer and client concurrently.
async fn run(peer: impl Future<Output = ()>, client: impl Future<Output = ()>) {
    timeout(TEST_TIMEOUT, async { tokio::join!(peer, client) }).await.unwrap();
}

/// A correct connection that carries one message and then ends.
async fn sound(peer: &mut TestPeer, minor: u8, text: &[u8]) {
    peer.publisher(minor, TOPIC).await;
    peer.send(&message(&[TOPIC, text])).await;
}

async fn expect_connected(sub: &mut SubSocket) {
    let event = sub.next().await;
    assert!(matches!(event, SubEvent::Connected), "{event:?}");
}

async fn expect_message(sub: &mut SubSocket, text: &[u8]) {
    let event = sub.next().await;
    let SubEvent::Message(message) = event else { panic!("{event:?} instead of a message") };
    assert_eq!(message, owned(&[TOPIC, text]));
}

async fn expect_disconnected(sub: &mut SubSocket) -> LinkError {
    let event = sub.next().await;
    let SubEvent::Disconnected(error) = event else { panic!("{event:?} instead of the end") };
    error
}

// === Case 1: reset between READY and our subscription ===

#[tokio::test]
async fn resets_after_ready_never_stall() {
    const RESETS: usize = 12;
    let (listener, endpoint) = listener().await;
    let peer = async {
        for _ in 0..RESETS {
            let mut peer = TestPeer::accept(&listener).await;
            peer.send(&[greeting(1), ready("PUB")].concat()).await;
            peer.reset();
        }
        sound(&mut TestPeer::accept(&listener).await, 1, b"hello").await;
    };
    let client = async {
        let mut sub = subscribe(endpoint, patient());
        let mut ends = 0;
        let received = loop {
            match sub.next().await {
                SubEvent::Connected => {}
                SubEvent::Disconnected(_) => ends += 1,
                SubEvent::Message(message) => break message,
            }
        };
        assert_eq!(received, owned(&[TOPIC, b"hello"]));
        assert_eq!(ends, RESETS);
    };
    run(peer, client).await;
}

// === Case 2: a handshake that never completes ===

/// A peer that sends only `start` on its `bad`th connection.
async fn check_stuck_handshake(start: &[u8], bad: usize) {
    let (listener, endpoint) = listener().await;
    let limits = Limits { handshake_timeout: SHORT, ..patient() };
    let peer = async {
        for number in 0..3 {
            let mut peer = TestPeer::accept(&listener).await;
            if number == bad {
                peer.send(start).await;
                // The client, not the peer, closes the connection.
                peer.read_to_end().await;
            } else {
                sound(&mut peer, 1, b"hello").await;
            }
        }
    };
    let client = async {
        let mut sub = subscribe(endpoint, limits);
        for number in 0..3 {
            if number == bad {
                let error = expect_disconnected(&mut sub).await;
                assert!(matches!(error, LinkError::HandshakeTimeout { after: SHORT }), "{error}");
            } else {
                expect_connected(&mut sub).await;
                expect_message(&mut sub, b"hello").await;
                let error = expect_disconnected(&mut sub).await;
                assert!(matches!(error, LinkError::Closed), "{error}");
            }
        }
    };
    run(peer, client).await;
}

#[tokio::test]
async fn no_greeting_on_the_first_connection() {
    check_stuck_handshake(b"", 0).await;
}

#[tokio::test]
async fn no_greeting_on_a_reconnection() {
    check_stuck_handshake(b"", 1).await;
}

#[tokio::test]
async fn half_a_greeting() {
    check_stuck_handshake(&greeting(1)[..40], 1).await;
}

#[tokio::test]
async fn no_ready() {
    check_stuck_handshake(&greeting(1), 1).await;
}

#[tokio::test]
async fn no_greeting_for_a_dealer() {
    let (listener, endpoint) = listener().await;
    let limits = Limits { handshake_timeout: SHORT, ..patient() };
    let peer = async {
        TestPeer::accept(&listener).await.read_to_end().await;
    };
    let client = async {
        let error = DealerSocket::connect(&endpoint, &limits).await.unwrap_err();
        assert!(matches!(error, LinkError::HandshakeTimeout { after: SHORT }), "{error}");
    };
    run(peer, client).await;
}

// === Case 3: heartbeats ===

#[tokio::test]
async fn pings_of_the_peer_are_answered_and_do_not_disturb() {
    let (listener, endpoint) = listener().await;
    let peer = async {
        let mut peer = TestPeer::accept(&listener).await;
        peer.publisher(1, TOPIC).await;
        for number in 0..20_u8 {
            let ping = [b"\x04PING\0\x05ctx".as_slice(), &[number]].concat();
            // libzmq may send one between the frames of a message.
            peer.send(&frame(FrameKind::More, TOPIC)).await;
            peer.send(&frame(FrameKind::Command, &ping)).await;
            peer.send(&frame(FrameKind::Last, &[number])).await;
            let pong = [b"\x04PONGctx".as_slice(), &[number]].concat();
            assert_eq!(peer.read_frame().await, (FrameKind::Command, pong));
        }
    };
    let client = async {
        let mut sub = subscribe(endpoint, patient());
        expect_connected(&mut sub).await;
        for number in 0..20_u8 {
            expect_message(&mut sub, &[number]).await;
        }
        let error = expect_disconnected(&mut sub).await;
        assert!(matches!(error, LinkError::Closed), "{error}");
    };
    run(peer, client).await;
}

// === Case 4: absurd and forbidden frames ===

async fn check_violation(after_subscription: &[u8], expected: ProtocolError) {
    let (listener, endpoint) = listener().await;
    let limits = Limits { message_bytes_max: 1000, ..patient() };
    let peer = async {
        let mut peer = TestPeer::accept(&listener).await;
        peer.publisher(1, TOPIC).await;
        peer.send(after_subscription).await;
        peer.read_to_end().await;
        sound(&mut TestPeer::accept(&listener).await, 1, b"hello").await;
    };
    let client = async {
        let mut sub = subscribe(endpoint, limits);
        expect_connected(&mut sub).await;
        let error = expect_disconnected(&mut sub).await;
        let LinkError::Protocol(error) = error else { panic!("{error} instead of {expected}") };
        assert_eq!(error, expected);
        expect_connected(&mut sub).await;
        expect_message(&mut sub, b"hello").await;
    };
    run(peer, client).await;
}

#[tokio::test]
async fn a_frame_of_one_tebibyte() {
    let max = Limits::DEFAULTS.frame_bytes_max;
    let bytes = [long_header(0, TIB), b"abc".to_vec()].concat();
    check_violation(&bytes, ProtocolError::FrameTooLong { bytes: TIB, max }).await;
}

#[tokio::test]
async fn a_command_of_one_tebibyte() {
    let expected = ProtocolError::CommandTooLong { bytes: TIB, max: 4096 };
    check_violation(&long_header(4, TIB), expected).await;
}

#[tokio::test]
async fn a_message_without_end() {
    let frames: Vec<u8> = (0..9).flat_map(|_| frame(FrameKind::More, b"x")).collect();
    check_violation(&frames, ProtocolError::TooManyFrames { max: 8 }).await;
}

#[tokio::test]
async fn a_message_of_large_frames() {
    let frames = message(&[&[0; 600], &[0; 600]]);
    check_violation(&frames, ProtocolError::MessageTooLong { bytes: 1200, max: 1000 }).await;
}

#[tokio::test]
async fn a_ready_of_one_tebibyte() {
    let (listener, endpoint) = listener().await;
    let peer = async {
        let mut peer = TestPeer::accept(&listener).await;
        peer.send(&[greeting(1), long_header(4, TIB)].concat()).await;
        peer.read_to_end().await;
    };
    let client = async {
        let error = expect_disconnected(&mut subscribe(endpoint, patient())).await;
        let expected = "a command of 1099511627776 bytes, at most 4096 are allowed";
        assert_eq!(error.to_string(), expected);
    };
    run(peer, client).await;
}

// === Case 5: the replay peer dies ===

#[derive(Debug)]
enum Death {
    Close,
    Reset,
    MidFrame,
    Violation,
    Silence,
}

async fn check_dealer_death(death: Death) {
    let (listener, endpoint) = listener().await;
    let limits = Limits { heartbeat_interval: SHORT / 2, heartbeat_timeout: SHORT, ..patient() };
    let description = format!("{death:?}");
    let peer = async {
        let mut peer = TestPeer::accept(&listener).await;
        peer.handshake(1, "ROUTER").await;
        assert_eq!(peer.read_frame().await, (FrameKind::More, vec![]));
        assert_eq!(peer.read_frame().await, (FrameKind::Last, vec![0, 0, 0, 0, 0, 0, 0, 7]));
        peer.send(&message(&[b"", b"seq", b"payload"])).await;
        // The client has the reply before the peer dies: a reset may discard unread bytes.
        assert_eq!(peer.read_frame().await, (FrameKind::Last, b"go".to_vec()));
        match death {
            Death::Close => {}
            Death::Reset => peer.reset(),
            Death::MidFrame => peer.send(&[0, 9, 1, 2]).await,
            Death::Violation => peer.send(&[0xff]).await,
            Death::Silence => drop(peer.read_to_end().await),
        }
    };
    let client = async {
        let mut dealer = DealerSocket::connect(&endpoint, &limits).await.unwrap();
        dealer.send(&[b"", &7_u64.to_be_bytes()]).await.unwrap();
        assert_eq!(dealer.recv().await.unwrap(), owned(&[b"", b"seq", b"payload"]));
        dealer.send(&[b"go"]).await.unwrap();
        let error = dealer.recv().await.unwrap_err();
        let fits = match description.as_str() {
            "Close" | "MidFrame" => matches!(error, LinkError::Closed),
            "Reset" => matches!(error, LinkError::Io(_)),
            "Violation" => matches!(error, LinkError::Protocol(_)),
            _ => matches!(error, LinkError::Silent { after: SHORT }),
        };
        assert!(fits, "{description}: {error:?}");
        assert!(matches!(dealer.recv().await, Err(LinkError::Closed)));
        assert!(matches!(dealer.send(&[b"x"]).await, Err(LinkError::Closed)));
    };
    run(peer, client).await;
}

#[tokio::test]
async fn a_dying_replay_peer_is_an_error() {
    for death in [Death::Close, Death::Reset, Death::MidFrame, Death::Violation, Death::Silence] {
        check_dealer_death(death).await;
    }
}

// === Case 6: silence without FIN ===

#[tokio::test]
async fn a_silent_peer_is_pinged_then_replaced() {
    let (listener, endpoint) = listener().await;
    let limits = Limits { heartbeat_interval: SHORT / 4, heartbeat_timeout: SHORT, ..patient() };
    let peer = async {
        let mut peer = TestPeer::accept(&listener).await;
        sound(&mut peer, 1, b"hello").await;
        // The peer lives while it answers: twice the time limit …
        for _ in 0..8 {
            let (kind, body) = peer.read_frame().await;
            assert_eq!((kind, body.as_slice()), (FrameKind::Command, b"\x04PING\0\x04".as_slice()));
            peer.send(&frame(FrameKind::Command, b"\x04PONG")).await;
        }
        // … and counts as dead once it stops.
        let rest = peer.read_to_end().await;
        assert!(!rest.is_empty() && rest.len() <= 4 * 9, "{rest:?}");
        sound(&mut TestPeer::accept(&listener).await, 1, b"again").await;
    };
    let client = async {
        let mut sub = subscribe(endpoint, limits);
        expect_connected(&mut sub).await;
        let start = Instant::now();
        expect_message(&mut sub, b"hello").await;
        let error = expect_disconnected(&mut sub).await;
        assert!(matches!(error, LinkError::Silent { after: SHORT }), "{error}");
        assert!(start.elapsed() >= 2 * SHORT, "{:?}", start.elapsed());
        expect_connected(&mut sub).await;
        expect_message(&mut sub, b"again").await;
    };
    run(peer, client).await;
}

#[tokio::test]
async fn a_silent_peer_of_3_0_is_replaced_without_ping() {
    let (listener, endpoint) = listener().await;
    let limits = Limits { silence_timeout: SHORT, heartbeat_interval: SHORT / 4, ..patient() };
    let peer = async {
        let mut peer = TestPeer::accept(&listener).await;
        sound(&mut peer, 0, b"hello").await;
        assert_eq!(peer.read_to_end().await, b"");
        sound(&mut TestPeer::accept(&listener).await, 0, b"again").await;
    };
    let client = async {
        let mut sub = subscribe(endpoint, limits);
        expect_connected(&mut sub).await;
        expect_message(&mut sub, b"hello").await;
        let error = expect_disconnected(&mut sub).await;
        assert!(matches!(error, LinkError::Silent { after: SHORT }), "{error}");
        expect_connected(&mut sub).await;
        expect_message(&mut sub, b"again").await;
    };
    run(peer, client).await;
}

/// A caller that is away for longer than every limit does not lose a peer that kept sending.
#[tokio::test]
async fn time_away_is_not_held_against_the_peer() {
    let (listener, endpoint) = listener().await;
    let limits = Limits { silence_timeout: SHORT, ..patient() };
    let (go, gone) = oneshot::channel();
    let peer = async {
        let mut peer = TestPeer::accept(&listener).await;
        sound(&mut peer, 0, b"first").await;
        gone.await.unwrap();
        peer.send(&message(&[TOPIC, b"second"])).await;
        peer.read_to_end().await;
    };
    let client = async {
        let mut sub = subscribe(endpoint, limits);
        expect_connected(&mut sub).await;
        expect_message(&mut sub, b"first").await;
        tokio::time::sleep_until(Instant::now() + 2 * SHORT).await;
        go.send(()).unwrap();
        // The kernel has the peer's bytes before the client reads again.
        yield_now().await;
        expect_message(&mut sub, b"second").await;
    };
    run(peer, client).await;
}

// === Attempts ===

#[tokio::test]
async fn attempts_on_a_closed_port_are_spaced_by_the_back_off() {
    let (listener, endpoint) = listener().await;
    drop(listener);
    let limits = Limits {
        backoff_min: Duration::from_millis(20),
        backoff_max: Duration::from_millis(40),
        ..patient()
    };
    let mut sub = subscribe(endpoint.clone(), limits);
    let start = Instant::now();
    for _ in 0..5 {
        let error = timeout(TEST_TIMEOUT, expect_disconnected(&mut sub)).await.unwrap();
        assert!(matches!(error, LinkError::Connect { .. }), "{error}");
        assert!(error.to_string().contains(&endpoint.to_string()), "{error}");
    }
    // At least half of 20 + 40 + 40 + 40 ms.
    assert!(start.elapsed() >= Duration::from_millis(70), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_port_in_use_is_reported_and_tried_again() {
    let (listener, endpoint) = listener().await;
    let mut sub = SubSocket::new(Attach::Bind(endpoint), Bytes::new(), patient());
    for _ in 0..2 {
        let error = timeout(TEST_TIMEOUT, expect_disconnected(&mut sub)).await.unwrap();
        assert!(matches!(error, LinkError::Listen { .. }), "{error}");
    }
    drop(listener);
    while poll_once(&mut sub).await.is_some() || sub.local_addr().is_none() {}
}

/// A listening subscription and its address.
async fn bound(limits: Limits) -> (SubSocket, SocketAddr) {
    let any = "tcp://127.0.0.1:0".parse().unwrap();
    let mut sub = SubSocket::new(Attach::Bind(any), Bytes::from_static(TOPIC), limits);
    loop {
        assert!(poll_once(&mut sub).await.is_none());
        if let Some(address) = sub.local_addr() {
            return (sub, address);
        }
    }
}

#[tokio::test]
async fn a_second_peer_waits_for_the_first_to_end() {
    let (mut sub, address) = bound(patient()).await;
    let (second_dialled, first_may_end) = oneshot::channel();
    let first = async {
        let mut peer = TestPeer::dial(address).await;
        sound(&mut peer, 1, b"first").await;
        first_may_end.await.unwrap();
        peer.send(&message(&[TOPIC, b"still first"])).await;
    };
    let second = async {
        let mut peer = TestPeer::dial(address).await;
        second_dialled.send(()).unwrap();
        sound(&mut peer, 1, b"second").await;
    };
    let client = async {
        expect_connected(&mut sub).await;
        expect_message(&mut sub, b"first").await;
        let client = async {
            expect_message(&mut sub, b"still first").await;
            let error = expect_disconnected(&mut sub).await;
            assert!(matches!(error, LinkError::Closed), "{error}");
            expect_connected(&mut sub).await;
            expect_message(&mut sub, b"second").await;
        };
        tokio::join!(second, client);
    };
    run(first, client).await;
}

// === Cancelled calls ===

/// Drops `next` after every poll while the bytes arrive one by one, including a reconnection.
#[tokio::test]
async fn a_cancelled_next_loses_nothing() {
    let (listener, endpoint) = listener().await;
    let payload = [7; 300];
    let peer = async {
        for _ in 0..2 {
            let mut peer = TestPeer::accept(&listener).await;
            let bytes =
                [greeting(1), ready("PUB"), message(&[TOPIC, b"one"]), message(&[TOPIC, &payload])];
            for byte in bytes.concat() {
                peer.send(&[byte]).await;
                yield_now().await;
            }
            // Closing with unread bytes would be a reset, which may discard the messages.
            peer.read_greeting().await;
            assert_eq!(peer.read_frame().await.0, FrameKind::Command);
            assert_eq!(peer.read_frame().await.0, FrameKind::Last);
        }
    };
    let client = async {
        let mut sub = subscribe(endpoint, patient());
        let mut seen = Vec::new();
        let mut cancelled = 0;
        while seen.len() < 8 {
            match poll_once(&mut sub).await {
                None => cancelled += 1,
                Some(SubEvent::Connected) => seen.push("connected".to_owned()),
                Some(SubEvent::Disconnected(_)) => seen.push("disconnected".to_owned()),
                Some(SubEvent::Message(message)) => {
                    assert_eq!(message[0], TOPIC);
                    assert!(message[1] == b"one".as_slice() || message[1] == payload.as_slice());
                    seen.push(format!("{} bytes", message[1].len()));
                }
            }
        }
        let connection = ["connected", "3 bytes", "300 bytes", "disconnected"];
        assert_eq!(seen, [connection, connection].concat());
        assert!(cancelled > 100, "only {cancelled} calls were cancelled");
    };
    run(peer, client).await;
}

#[tokio::test]
async fn a_cancelled_recv_or_send_tears_nothing() {
    let (listener, endpoint) = listener().await;
    let request = vec![3; 16 * 1024 * 1024];
    let (cancelled, may_read) = oneshot::channel();
    let peer = async {
        let mut peer = TestPeer::accept(&listener).await;
        peer.handshake(1, "ROUTER").await;
        may_read.await.unwrap();
        assert!(peer.read_frame().await == (FrameKind::Last, request.clone()));
        for byte in message(&[b"", b"reply"]) {
            peer.send(&[byte]).await;
            yield_now().await;
        }
        peer.read_to_end().await;
    };
    let client = async {
        let mut dealer = DealerSocket::connect(&endpoint, &patient()).await.unwrap();
        let frames = [request.as_slice()];
        tokio::select! {
            biased;
            sent = dealer.send(&frames) => panic!("the kernel took it all: {sent:?}"),
            () = yield_now() => {}
        }
        cancelled.send(()).unwrap();
        let mut polls = 0;
        let reply = loop {
            polls += 1;
            tokio::select! {
                biased;
                reply = dealer.recv() => break reply.unwrap(),
                () = yield_now() => {}
            }
        };
        assert_eq!(reply, owned(&[b"", b"reply"]));
        assert!(polls > 5, "only {polls} polls");
    };
    run(peer, client).await;
}

#[tokio::test]
async fn a_refused_dealer_names_the_endpoint() {
    let (listener, _) = listener().await;
    let gone = endpoint(listener.local_addr().unwrap());
    drop(listener);
    let error = DealerSocket::connect(&gone, &patient()).await.unwrap_err();
    assert!(error.to_string().contains(&gone.to_string()), "{error}");
}
