use super::frames::{Malformed, Reply, live, reply};
use crate::sequence::stated_incarnation;
use crate::zmtp::Message;
use bytes::Bytes;

const END: &[u8] = &[0xff; 8];

fn message(frames: &[&[u8]]) -> Message {
    frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect()
}

fn seven() -> [u8; 8] {
    7_u64.to_be_bytes()
}

#[test]
fn live_messages() {
    let read = |frames: &[&[u8]]| live(&message(frames)).map(|received| received.sequence);
    assert_eq!(read(&[b"", &seven(), b"x"]), Ok(7));
    assert_eq!(read(&[b"kv@host", &seven(), b""]), Ok(7));
    assert_eq!(read(&[]), Err(Malformed::Frames { frames: 0, expected: "3" }));
    assert_eq!(read(&[&seven(), b"x"]), Err(Malformed::Frames { frames: 2, expected: "3" }));
    assert_eq!(
        read(&[b"", b"", &seven(), b"x"]),
        Err(Malformed::Frames { frames: 4, expected: "3" })
    );
    assert_eq!(read(&[b"", b"7", b"x"]), Err(Malformed::Sequence { bytes: 1 }));
    assert_eq!(read(&[b"", b"123456789", b"x"]), Err(Malformed::Sequence { bytes: 9 }));
    assert_eq!(read(&[b"", END, b"x"]), Err(Malformed::Number { sequence: u64::MAX }));
}

#[test]
fn replies_with_and_without_a_topic() {
    let read = |frames: &[&[u8]]| match reply(&message(frames)) {
        Ok(Reply::Batch { received, .. }) => Ok(Some((received.sequence, received.item.bytes))),
        Ok(Reply::End) => Ok(None),
        Err(malformed) => Err(malformed),
    };
    let batch = Ok(Some((7, Bytes::from_static(b"x"))));
    assert_eq!(read(&[b"", &seven(), b"x"]), batch);
    assert_eq!(read(&[b"", b"topic", &seven(), b"x"]), batch);
    assert_eq!(read(&[b"", END, b""]), Ok(None));
    assert_eq!(read(&[b"", b"", END, b""]), Ok(None));
    assert_eq!(read(&[b"", END, b"x"]), Err(Malformed::Number { sequence: u64::MAX }));
    assert_eq!(read(&[b"", b""]), Err(Malformed::Frames { frames: 2, expected: "3 or 4" }));
    assert_eq!(
        read(&[b"".as_slice(); 5]),
        Err(Malformed::Frames { frames: 5, expected: "3 or 4" })
    );
    assert_eq!(read(&[b"", b"short", b"x"]), Err(Malformed::Sequence { bytes: 5 }));
}

#[test]
fn a_fingerprint_depends_on_the_payload_and_not_on_the_way_it_came() {
    let live = live(&message(&[b"topic", &seven(), b"x"])).unwrap().fingerprint;
    let replayed = |payload: &[u8]| match reply(&message(&[b"", &seven(), payload])) {
        Ok(Reply::Batch { received, .. }) => received.fingerprint,
        other => panic!("{other:?}"),
    };
    assert_eq!(live, replayed(b"x"));
    assert_ne!(live, replayed(b"y"));
}

/// Number and epoch in one frame, as proposed for vLLM.
fn seven_of(epoch: &[u8]) -> Vec<u8> {
    [&seven(), epoch].concat()
}

#[test]
fn a_sequence_frame_of_24_bytes_states_the_publishers_incarnation() {
    let epoch = *b"\x12\x3e\x45\x67\xe8\x9b\x12\xd3\xa4\x56\x42\x66\x14\x17\x40\x00";
    let life = stated_incarnation(&epoch);
    assert!(life.is_some());
    let read = |sequence: &[u8]| {
        live(&message(&[b"", sequence, b"x"]))
            .map(|received| (received.sequence, received.incarnation))
    };
    assert_eq!(read(&seven_of(&epoch)), Ok((7, life)));
    assert_eq!(read(&seven()), Ok((7, None)));
    assert_eq!(read(&seven_of(&[0; 16])), Ok((7, None)), "a publisher without an epoch");
    for bytes in [0, 7, 9, 16, 23, 25, 32] {
        assert_eq!(read(&vec![1; bytes]), Err(Malformed::Sequence { bytes }));
    }
    let replayed = |frames: &[&[u8]]| match reply(&message(frames)) {
        Ok(Reply::Batch { received, .. }) => Ok((received.sequence, received.incarnation)),
        Ok(Reply::End) => Err(None),
        Err(malformed) => Err(Some(malformed)),
    };
    assert_eq!(replayed(&[b"", &seven_of(&epoch), b"x"]), Ok((7, life)));
    assert_eq!(replayed(&[b"", b"topic", &seven_of(&epoch), b"x"]), Ok((7, life)));
    let end = [END, &epoch].concat();
    assert_eq!(replayed(&[b"", END, b""]), Err(None));
    assert_eq!(replayed(&[b"", &end, b""]), Err(None));
    assert_eq!(replayed(&[b"", b"", &end, b""]), Err(None));
    assert_eq!(read(&end), Err(Malformed::Number { sequence: u64::MAX }));
}

#[test]
fn a_topic_may_state_the_publishers_incarnation() {
    let read = |topic: &[u8]| live(&message(&[topic, &seven(), b""])).unwrap().incarnation;
    let life = stated_incarnation(b"replica-epoch-1");
    assert_eq!(read(b"kv\0sgl-kv-epoch=replica-epoch-1"), life);
    assert_eq!(read(b"\0sgl-kv-epoch=replica-epoch-1"), life, "no topic of its own");
    // The barrier of a snapshot, after the epoch.
    assert_eq!(read(b"kv\0sgl-kv-epoch=replica-epoch-1\0sgl-kv-snapshot=5f"), life);
    assert_ne!(read(b"kv\0sgl-kv-epoch=replica-epoch-2"), life);
    for nothing in
        [&b"kv"[..], b"kv\0sgl-kv-epoch=", b"kv\0sgl-kv-epoch", b"kv\0sgl-kv-snapshot=5f"]
    {
        assert_eq!(read(nothing), None);
    }
    let replayed = reply(&message(&[b"", b"kv\0sgl-kv-epoch=replica-epoch-1", &seven(), b"x"]));
    assert!(matches!(replayed, Ok(Reply::Batch { received, .. }) if received.incarnation == life));
    // If both are present, the sequence frame takes precedence.
    let both = live(&message(&[b"\0sgl-kv-epoch=replica-epoch-1", &seven_of(&[5; 16]), b"x"]));
    assert_eq!(both.unwrap().incarnation, stated_incarnation(&[5; 16]));
}
