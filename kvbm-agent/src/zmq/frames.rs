//! Frames of the messages on both sockets.

use bytes::Bytes;
use zeromq::ZmqMessage;

/// Sequence number that ends a replay.
const END: [u8; 8] = [0xff; 8];

/// Live message: `[topic, sequence, payload]`.
pub(super) fn live(topic: &Bytes, sequence: u64, payload: Bytes) -> ZmqMessage {
    let mut message = ZmqMessage::from(topic.clone());
    message.push_back(number(sequence));
    message.push_back(payload);
    message
}

/// Replay message: `[identity, "", topic, sequence, payload]`. The ROUTER removes the identity.
pub(super) fn reply(identity: &Bytes, topic: &Bytes, sequence: u64, payload: Bytes) -> ZmqMessage {
    answer(identity, topic.clone(), number(sequence), payload)
}

/// End of a replay: `[identity, "", "", END, ""]`.
pub(super) fn replay_end(identity: &Bytes) -> ZmqMessage {
    answer(identity, Bytes::new(), Bytes::from_static(&END), Bytes::new())
}

/// Returns the identity and first number of a replay request `[identity, "", start]`, or `None` for any other message.
pub(super) fn request(message: &ZmqMessage) -> Option<(Bytes, u64)> {
    let identity = message.get(0)?;
    let empty = message.get(1)?;
    let start = message.get(2)?;
    if message.len() != 3 || !empty.is_empty() {
        return None;
    }
    let start = <[u8; 8]>::try_from(start.as_ref()).ok()?;
    Some((identity.clone(), u64::from_be_bytes(start)))
}

fn answer(identity: &Bytes, topic: Bytes, sequence: Bytes, payload: Bytes) -> ZmqMessage {
    let mut message = ZmqMessage::from(identity.clone());
    for frame in [Bytes::new(), topic, sequence, payload] {
        message.push_back(frame);
    }
    message
}

fn number(sequence: u64) -> Bytes {
    Bytes::copy_from_slice(&sequence.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(message: &ZmqMessage) -> Vec<&[u8]> {
        message.iter().map(Bytes::as_ref).collect()
    }

    #[test]
    fn frames_are_as_vllm_sends_them() {
        let topic = Bytes::from_static(b"kv");
        let payload = Bytes::from_static(b"batch");
        let seventh = [0, 0, 0, 0, 0, 0, 1, 7].as_slice();
        let message = live(&topic, 263, payload.clone());
        assert_eq!(frames(&message), [b"kv".as_slice(), seventh, b"batch"]);
        let who = Bytes::from_static(b"me");
        let message = reply(&who, &topic, 263, payload);
        assert_eq!(frames(&message), [b"me".as_slice(), b"", b"kv", seventh, b"batch"]);
        let end = replay_end(&who);
        assert_eq!(frames(&end), [b"me".as_slice(), b"", b"", &[0xff; 8], b""]);
    }

    #[test]
    fn only_requests_are_requests() {
        let message = |frames: &[&'static [u8]]| {
            let mut frames = frames.iter().map(|frame| Bytes::from_static(frame));
            let mut message = ZmqMessage::from(frames.next().expect("a frame"));
            frames.for_each(|frame| message.push_back(frame));
            request(&message)
        };
        const START: &[u8] = &[0, 0, 0, 0, 0, 0, 1, 7];
        assert_eq!(message(&[b"me", b"", START]), Some((Bytes::from_static(b"me"), 263)));
        for wrong in [
            [b"me".as_slice(), b"", START, b""].as_slice(),
            &[b"me", START],
            &[b"me", b"x", START],
            &[b"me", b"", b"1"],
            &[b"me"],
        ] {
            assert_eq!(message(wrong), None, "{wrong:?}");
        }
    }
}
