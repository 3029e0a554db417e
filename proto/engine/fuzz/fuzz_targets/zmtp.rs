//! Any bytes in any pieces: no panic, and memory bounded by what arrived.
#![no_main]

use bytes::{BufMut, Bytes};
use kvasir_engine::zmtp::{Limits, Role, Session, SessionEvent};
use libfuzzer_sys::fuzz_target;

/// Slack of the input buffer: two read chunks.
const SLACK_BYTES: usize = 2 * 64 * 1024;

fuzz_target!(|data: (bool, bool, u8, &[u8])| {
    let (dealer, handshaken, piece, bytes) = data;
    let role = if dealer { Role::Dealer } else { Role::Subscriber { topic: Bytes::new() } };
    let limits = Limits { frame_bytes_max: 300, message_bytes_max: 500, ..Limits::DEFAULTS };
    let mut session = Session::new(role, &limits);
    if handshaken {
        session.read_buffer().put_slice(&handshake(dealer));
    }
    for piece in bytes.chunks(usize::from(piece).max(1)) {
        session.read_buffer().put_slice(piece);
        loop {
            match session.next_event() {
                Ok(None) => break,
                Ok(Some(SessionEvent::Ready { .. })) => {}
                Ok(Some(SessionEvent::Message(message))) => {
                    assert!(message.len() <= limits.message_frames_max);
                    let total: usize = message.iter().map(Bytes::len).sum();
                    assert!(total <= limits.message_bytes_max);
                }
                Err(_) => return,
            }
        }
        assert!(session.input_capacity() <= 2 * bytes.len() + SLACK_BYTES);
    }
});

fn handshake(dealer: bool) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[0] = 0xff;
    bytes[9] = 0x7f;
    bytes[10..16].copy_from_slice(b"\x03\x01NULL");
    let socket_type: &[u8] = if dealer { b"\x06ROUTER" } else { b"\x03PUB" };
    let body = [b"\x05READY\x0bSocket-Type\0\0\0".as_slice(), socket_type].concat();
    bytes.extend([4, u8::try_from(body.len()).unwrap()]);
    bytes.extend(body);
    bytes
}
