use super::frames::{Malformed, Reply, live, reply};
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
    assert_eq!(read(&[b"", END, b"x"]), Err(Malformed::Reserved));
}

#[test]
fn replies_with_and_without_a_topic() {
    let read = |frames: &[&[u8]]| match reply(&message(frames)) {
        Ok(Reply::Batch(received)) => Ok(Some((received.sequence, received.item.bytes))),
        Ok(Reply::End) => Ok(None),
        Err(malformed) => Err(malformed),
    };
    let batch = Ok(Some((7, Bytes::from_static(b"x"))));
    assert_eq!(read(&[b"", &seven(), b"x"]), batch);
    assert_eq!(read(&[b"", b"topic", &seven(), b"x"]), batch);
    assert_eq!(read(&[b"", END, b""]), Ok(None));
    assert_eq!(read(&[b"", b"", END, b""]), Ok(None));
    assert_eq!(read(&[b"", END, b"x"]), Err(Malformed::Reserved));
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
        Ok(Reply::Batch(received)) => received.fingerprint,
        other => panic!("{other:?}"),
    };
    assert_eq!(live, replayed(b"x"));
    assert_ne!(live, replayed(b"y"));
}
