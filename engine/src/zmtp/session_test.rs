//! Tests the protocol without a socket: every split, every truncation, absurd sizes, noise.

use std::time::Duration;

use bytes::{BufMut, Bytes};
use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::frame::FrameKind;
use super::test_peer::{frame, greeting, long_header, message, ready};
use super::{Limits, Message, ProtocolError, Role, Session, SessionEvent};

const CHUNK: usize = 64 * 1024;
const TIB: u64 = 1 << 40;

fn limits() -> Limits {
    Limits {
        frame_bytes_max: 1000,
        message_frames_max: 3,
        message_bytes_max: 1500,
        ..Limits::DEFAULTS
    }
}

fn subscriber() -> Session {
    Session::new(Role::Subscriber { topic: Bytes::from_static(b"kv@") }, &limits())
}

/// Feeds `bytes` and collects the events up to the first error.
fn feed(session: &mut Session, bytes: &[u8]) -> Result<Vec<SessionEvent>, ProtocolError> {
    let mut events = Vec::new();
    for chunk in bytes.chunks(CHUNK) {
        session.read_buffer().put_slice(chunk);
        while let Some(event) = session.next_event()? {
            events.push(event);
        }
    }
    Ok(events)
}

fn handshaken() -> Session {
    let mut session = subscriber();
    feed(&mut session, &[greeting(1), ready("PUB")].concat()).unwrap();
    let written = session.output().len();
    session.written(written);
    session
}

fn owned(frames: &[&[u8]]) -> Message {
    frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect()
}

/// A conversation with every kind of frame, and the resulting events.
fn conversation() -> (Vec<u8>, Vec<SessionEvent>) {
    let long = [9; 700];
    let bytes = [
        greeting(1),
        ready("XPUB"),
        message(&[b"kv@a", b"12345678", b"payload"]),
        frame(FrameKind::Command, b"\x04PING\0\x0acontext"),
        message(&[&long]),
        frame(FrameKind::More, b"kv@"),
        frame(FrameKind::Command, b"\x04PING\0\0"),
        frame(FrameKind::Command, b"\x04PONG"),
        frame(FrameKind::Command, b"\x07UNKNOWN what"),
        frame(FrameKind::Last, b""),
        [long_header(0, 2), b"ab".to_vec()].concat(),
    ]
    .concat();
    let events = vec![
        SessionEvent::Ready { pings: true },
        SessionEvent::Message(owned(&[b"kv@a", b"12345678", b"payload"])),
        SessionEvent::Message(owned(&[&long])),
        SessionEvent::Message(owned(&[b"kv@", b""])),
        SessionEvent::Message(owned(&[b"ab"])),
    ];
    (bytes, events)
}

/// The expected output of `conversation`.
fn answers() -> Vec<u8> {
    [
        greeting(1),
        frame(FrameKind::Command, b"\x05READY\x0bSocket-Type\0\0\0\x03SUB\x08Identity\0\0\0\0"),
        frame(FrameKind::Last, b"\x01kv@"),
        frame(FrameKind::Command, b"\x04PONGcontext"),
        frame(FrameKind::Command, b"\x04PONG"),
    ]
    .concat()
}

#[test]
fn a_conversation_means_the_same_at_every_split() {
    let (bytes, expected) = conversation();
    for split in 0..=bytes.len() {
        let mut session = subscriber();
        let (start, end) = bytes.split_at(split);
        let mut events = feed(&mut session, start).unwrap();
        events.extend(feed(&mut session, end).unwrap());
        assert_eq!(events, expected, "split at {split}");
        assert_eq!(session.output(), answers(), "split at {split}");
    }
}

#[test]
fn a_conversation_means_the_same_byte_by_byte() {
    let (bytes, expected) = conversation();
    let mut session = subscriber();
    let events: Vec<SessionEvent> =
        bytes.iter().flat_map(|byte| feed(&mut session, &[*byte]).unwrap()).collect();
    assert_eq!(events, expected);
    assert_eq!(session.output(), answers());
}

#[test]
fn a_truncated_conversation_is_a_prefix_and_no_error() {
    let (bytes, expected) = conversation();
    let mut counts = Vec::new();
    for end in 0..bytes.len() {
        let events = feed(&mut subscriber(), &bytes[..end]).unwrap();
        assert_eq!(events, expected[..events.len()], "cut at {end}");
        counts.push(events.len());
    }
    assert!(counts.is_sorted());
    assert_eq!(counts.last(), Some(&(expected.len() - 1)));
}

#[test]
fn absurd_sizes_fail_by_the_header_alone() {
    let sizes = [1001, 1 << 32, TIB, i64::MAX as u64, 1 << 63, u64::MAX];
    for size in sizes {
        let error = |stage: &[u8], flags: u8| {
            let mut session = subscriber();
            let bytes = [stage, &long_header(flags, size)].concat();
            let error = feed(&mut session, &bytes).unwrap_err();
            assert!(session.input_capacity() <= 2 * CHUNK, "{size}: {}", session.input_capacity());
            error
        };
        let open = [greeting(1), ready("PUB")].concat();
        let too_long = ProtocolError::FrameTooLong { bytes: size, max: 1000 };
        assert_eq!(error(&open, 0), too_long);
        assert_eq!(error(&open, 1), too_long);
        if size > 4096 {
            let too_long = ProtocolError::CommandTooLong { bytes: size, max: 4096 };
            assert_eq!(error(&open, 4), too_long);
            assert_eq!(error(&greeting(1), 4), too_long);
        }
    }
}

#[test]
fn message_limits_are_exact() {
    let check = |bytes: &[u8], expected: Result<usize, ProtocolError>| {
        assert_eq!(feed(&mut handshaken(), bytes).map(|events| events.len()), expected);
    };
    check(&message(&[&[0; 1000]]), Ok(1));
    check(&message(&[b"", b"", b""]), Ok(1));
    check(&message(&[b"", b"", b"", b""]), Err(ProtocolError::TooManyFrames { max: 3 }));
    check(&message(&[&[0; 1000], &[0; 500]]), Ok(1));
    check(
        &message(&[&[0; 1000], &[0; 501]]),
        Err(ProtocolError::MessageTooLong { bytes: 1501, max: 1500 }),
    );
    // The sum restarts with each message.
    check(&[message(&[&[0; 1000]]), message(&[&[0; 1000]])].concat(), Ok(2));
}

#[test]
fn a_legal_large_frame_grows_the_buffer_only_as_it_arrives() {
    let size = 8 * 1024 * 1024;
    let limits = Limits::DEFAULTS;
    let mut session = Session::new(Role::Dealer, &limits);
    feed(&mut session, &[greeting(1), ready("ROUTER")].concat()).unwrap();
    feed(&mut session, &long_header(0, size as u64)).unwrap();
    assert!(session.input_capacity() <= 2 * CHUNK);
    let body = vec![5; size];
    let mut arrived = 0;
    for chunk in body[..size - 1].chunks(CHUNK) {
        assert_eq!(feed(&mut session, chunk), Ok(vec![]));
        arrived += chunk.len();
        let bound = 2 * (arrived + 2 * CHUNK);
        assert!(session.input_capacity() <= bound, "{arrived}: {}", session.input_capacity());
    }
    let events = feed(&mut session, &[5]).unwrap();
    assert_eq!(events, [SessionEvent::Message(vec![Bytes::from(body)])]);
    drop(events);
    drop(session.read_buffer());
    assert!(session.input_capacity() <= 2 * CHUNK, "the large buffer was kept");
}

#[test]
fn an_idle_connection_keeps_no_buffer_and_loses_no_byte() {
    let mut session = handshaken();
    let bytes = message(&[b"kv@a", b"12345678", b"payload"]);
    let (first, rest) = bytes.split_at(7);
    assert_eq!(feed(&mut session, first), Ok(vec![]));
    session.release_buffer();
    let events = feed(&mut session, rest).unwrap();
    assert_eq!(events, [SessionEvent::Message(owned(&[b"kv@a", b"12345678", b"payload"]))]);
    drop(session.read_buffer());
    session.release_buffer();
    assert_eq!(session.input_capacity(), 0);
}

#[test]
fn greetings() {
    let check = |change: &dyn Fn(&mut Vec<u8>), expected: Result<(), ProtocolError>| {
        let mut bytes = greeting(1);
        change(&mut bytes);
        assert_eq!(feed(&mut subscriber(), &bytes).map(drop), expected);
    };
    let mechanism = |name: &str| Err(ProtocolError::Mechanism { name: name.to_owned() });
    check(&|_| {}, Ok(()));
    check(&|greeting| greeting[1..9].fill(7), Ok(()));
    check(&|greeting| greeting[10..12].copy_from_slice(&[4, 0]), Ok(()));
    check(&|greeting| greeting[10] = 1, Err(ProtocolError::Version { major: 1 }));
    check(&|greeting| greeting[9] = 0x7e, Err(ProtocolError::Signature));
    check(&|greeting| greeting[12..17].copy_from_slice(b"PLAIN"), mechanism("PLAIN"));
    check(&|greeting| greeting[12..17].copy_from_slice(b"CURVE"), mechanism("CURVE"));
    check(
        &|greeting| greeting[31] = b'x',
        mechanism(
            "NULL\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00x",
        ),
    );
    check(&|greeting| greeting[12] = 0, mechanism("\\x00ULL"));
}

#[test]
fn what_is_no_zmtp_fails_with_its_first_byte() {
    assert_eq!(feed(&mut subscriber(), b"H"), Err(ProtocolError::Signature));
    // A ZMTP 2 peer is detected by its revision byte, before it would send 64 bytes.
    let start = &[[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f].as_slice(), &[1]].concat();
    assert_eq!(feed(&mut subscriber(), start), Err(ProtocolError::Version { major: 1 }));
}

#[test]
fn only_peers_from_3_1_are_pinged() {
    for (minor, pings) in [(0, false), (1, true), (2, true)] {
        let events = feed(&mut subscriber(), &[greeting(minor), ready("PUB")].concat());
        assert_eq!(events, Ok(vec![SessionEvent::Ready { pings }]), "3.{minor}");
    }
}

#[test]
fn handshake_commands() {
    let check = |role: Role, first: Vec<u8>, expected: Result<(), ProtocolError>| {
        let mut session = Session::new(role, &limits());
        assert_eq!(feed(&mut session, &[greeting(0), first].concat()).map(drop), expected);
    };
    let topic = Bytes::new();
    let subscriber = || Role::Subscriber { topic: topic.clone() };
    let unfit = |found: &str, expected| {
        Err(ProtocolError::SocketType { found: found.to_owned(), expected })
    };
    let malformed = |body: &[u8]| {
        check(
            subscriber(),
            frame(FrameKind::Command, body),
            Err(ProtocolError::Malformed { command: "READY" }),
        );
    };
    check(subscriber(), ready("PUB"), Ok(()));
    check(subscriber(), ready("XPUB"), Ok(()));
    check(subscriber(), ready("ROUTER"), unfit("ROUTER", "PUB or XPUB"));
    check(subscriber(), ready("pub"), unfit("pub", "PUB or XPUB"));
    check(subscriber(), frame(FrameKind::Command, b"\x05READY"), unfit("", "PUB or XPUB"));
    check(Role::Dealer, ready("ROUTER"), Ok(()));
    check(Role::Dealer, ready("PUB"), unfit("PUB", "ROUTER"));
    let any_case = b"\x05READY\x01x\0\0\0\x00\x0bsocket-TYPE\0\0\0\x03PUB".as_slice();
    check(subscriber(), frame(FrameKind::Command, any_case), Ok(()));
    check(subscriber(), frame(FrameKind::Last, b"\x05READY"), Err(ProtocolError::NotReady));
    check(subscriber(), frame(FrameKind::Command, b"\x04PING\0\0"), Err(ProtocolError::NotReady));
    let refused = ProtocolError::Refused { reason: "no\\nway".to_owned() };
    check(subscriber(), frame(FrameKind::Command, b"\x05ERROR\x06no\nway"), Err(refused));
    malformed(b"\x05READY\x0bSocket-Type\0\0\0\x04PUB");
    malformed(b"\x05READY\x0bSocket-Type\xff\xff\xff\xffPUB");
    malformed(b"\x05READY\x0bSocket-Type\0\0");
    malformed(b"\x05READY\xff");
}

#[test]
fn traffic_commands() {
    let check = |bytes: &[u8], expected: ProtocolError| {
        assert_eq!(feed(&mut handshaken(), bytes), Err(expected));
    };
    let command = |body: &[u8]| frame(FrameKind::Command, body);
    check(&command(b"\x04PING\0"), ProtocolError::Malformed { command: "PING" });
    check(&command(b"\x05ERROR"), ProtocolError::Refused { reason: String::new() });
    check(&command(b"\x05ERROR\xffab"), ProtocolError::Refused { reason: "ab".to_owned() });
    check(&[5, 0], ProtocolError::Flags { flags: 5 });
    check(&[8], ProtocolError::Flags { flags: 8 });
}

#[test]
fn a_flood_of_pings_from_a_peer_that_does_not_read_is_cut() {
    let mut session = handshaken();
    let ping = frame(FrameKind::Command, &[b"\x04PING\0\0", [1; 4000].as_slice()].concat());
    let mut sent = 0;
    let mut output_max = 0;
    let error = loop {
        match feed(&mut session, &ping) {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
        output_max = output_max.max(session.output().len());
    };
    assert!(matches!(error, ProtocolError::NotReading { .. }), "{error}");
    assert!(output_max <= 4 * CHUNK, "{output_max}");
    assert!(sent > 60, "{sent}");
}

#[test]
fn what_we_send() {
    let mut session = handshaken();
    session.queue_message(&[]);
    session.queue_message(&[b"", b"12345678"]);
    session.queue_ping(Duration::from_millis(30_050));
    session.queue_ping(Duration::from_secs(1 << 40));
    let expected = [
        message(&[b"", b"12345678"]),
        frame(FrameKind::Command, b"\x04PING\x01\x2c"),
        frame(FrameKind::Command, b"\x04PING\xff\xff"),
    ]
    .concat();
    assert_eq!(session.output(), expected);
    session.written(3);
    assert_eq!(session.output(), &expected[3..]);
}

/// Noise after each stage. It must not cause a panic, unbounded growth or an endless loop.
#[test]
fn noise_is_bounded() {
    for seed in 0..2000 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let (conversation, _) = conversation();
        let start = random.random_range(0..=conversation.len());
        let mut bytes = conversation[..start].to_vec();
        let mut noise = vec![0; random.random_range(1..400)];
        random.fill_bytes(&mut noise);
        if random.random() {
            // Mostly legal flags reach further into the frame layer.
            for byte in noise.iter_mut().step_by(3) {
                *byte &= 7;
            }
        }
        bytes.extend(noise);
        let mut session = subscriber();
        let _outcome = feed(&mut session, &bytes);
        assert!(session.input_capacity() <= 2 * CHUNK, "seed {seed}");
        assert!(session.output().len() <= 2 * CHUNK, "seed {seed}");
    }
}
