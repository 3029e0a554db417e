//! Any bytes of a ZMTP peer, in any pieces: no panic, and memory bounded by what arrived.

use bytes::{BufMut, Bytes};
use kvasir_engine::zmtp::{Limits, Role, Session, SessionEvent};

/// Slack of the input buffer: two read chunks.
const SLACK_BYTES: usize = 2 * 64 * 1024;

/// The first byte says which socket reads and whether the handshake is done, the second in which pieces.
pub(super) fn target(input: &[u8]) -> bool {
    let [choice, piece, bytes @ ..] = input else { return false };
    let is_dealer = choice & 1 != 0;
    let is_handshaken = choice & 2 != 0;
    let role = if is_dealer { Role::Dealer } else { Role::Subscriber { topic: Bytes::new() } };
    let limits = Limits { frame_bytes_max: 300, message_bytes_max: 500, ..Limits::DEFAULTS };
    let mut session = Session::new(role, &limits);
    if is_handshaken {
        session.read_buffer().put_slice(&handshake(is_dealer));
    }
    let mut understood = false;
    for piece in bytes.chunks(usize::from(*piece).max(1)) {
        session.read_buffer().put_slice(piece);
        loop {
            match session.next_event() {
                Ok(None) => break,
                Ok(Some(SessionEvent::Ready { .. })) => {}
                Ok(Some(SessionEvent::Message(message))) => {
                    assert!(message.len() <= limits.message_frames_max);
                    let total: usize = message.iter().map(Bytes::len).sum();
                    assert!(total <= limits.message_bytes_max);
                    understood = true;
                }
                Err(_) => return understood,
            }
        }
        assert!(session.input_capacity() <= 2 * bytes.len() + SLACK_BYTES);
    }
    understood
}

/// What a publisher or a ROUTER says before its first message.
fn handshake(is_dealer: bool) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    (bytes[0], bytes[9]) = (0xff, 0x7f);
    bytes[10..16].copy_from_slice(b"\x03\x01NULL");
    let socket_type: &[u8] = if is_dealer { b"\x06ROUTER" } else { b"\x03PUB" };
    let body = [b"\x05READY\x0bSocket-Type\0\0\0".as_slice(), socket_type].concat();
    bytes.extend([4, u8::try_from(body.len()).expect("a short command")]);
    bytes.extend(body);
    bytes
}
