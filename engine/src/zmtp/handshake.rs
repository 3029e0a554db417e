//! The ZMTP handshake with the NULL mechanism: greeting and READY.

use bytes::{BufMut, BytesMut};

use super::ProtocolError;

/// Length of a greeting in bytes.
pub(super) const GREETING_BYTES: usize = 64;

const VERSION_MAJOR: u8 = 3;
/// We announce 3.1 (PING and PONG) and subscribe by message, which 3.0 and 3.1 both accept.
const VERSION_MINOR: u8 = 1;
const PADDING_BYTES: usize = 8;
const MAJOR_AT: usize = 10;
const MINOR_AT: usize = 11;
const MECHANISM_AT: usize = 12;
const MECHANISM: &[u8; 20] = b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const AS_SERVER_AND_FILLER_BYTES: usize = 32;

const READY: &[u8] = b"\x05READY";
const SOCKET_TYPE: &[u8] = b"Socket-Type";
const IDENTITY: &[u8] = b"Identity";

/// Maximum length of a peer's text in an error.
const QUOTE_BYTES_MAX: usize = 64;

/// Appends our greeting.
pub(super) fn put_greeting(output: &mut BytesMut) {
    output.put_u8(0xff);
    output.put_bytes(0, PADDING_BYTES);
    output.put_u8(0x7f);
    output.put_u8(VERSION_MAJOR);
    output.put_u8(VERSION_MINOR);
    output.put_slice(MECHANISM);
    output.put_bytes(0, AS_SERVER_AND_FILLER_BYTES);
}

/// Checks the part of a greeting that has arrived, so that a peer without ZMTP fails at its first bytes.
/// Returns whether the peer supports PING, once the greeting is complete.
pub(super) fn check_greeting(input: &[u8]) -> Result<Option<bool>, ProtocolError> {
    let signature_end = 1 + PADDING_BYTES;
    if input.first().is_some_and(|byte| *byte != 0xff)
        || input.get(signature_end).is_some_and(|byte| byte & 1 == 0)
    {
        return Err(ProtocolError::Signature);
    }
    let Some(&major) = input.get(MAJOR_AT) else {
        return Ok(None);
    };
    if major < VERSION_MAJOR {
        return Err(ProtocolError::Version { major });
    }
    let Some(greeting) = input.get(..GREETING_BYTES) else {
        return Ok(None);
    };
    let mechanism = greeting.get(MECHANISM_AT..MECHANISM_AT + MECHANISM.len());
    if mechanism != Some(MECHANISM.as_slice()) {
        return Err(ProtocolError::Mechanism { name: quote(mechanism.unwrap_or_default()) });
    }
    let pings = major > VERSION_MAJOR || greeting.get(MINOR_AT).is_some_and(|minor| *minor >= 1);
    Ok(Some(pings))
}

/// The body of our READY command.
pub(super) fn ready_body(socket_type: &str) -> BytesMut {
    let mut body = BytesMut::from(READY);
    for (name, value) in [(SOCKET_TYPE, socket_type.as_bytes()), (IDENTITY, b"")] {
        body.put_u8(u8::try_from(name.len()).unwrap_or(u8::MAX));
        body.put_slice(name);
        body.put_u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        body.put_slice(value);
    }
    body
}

/// Checks the peer's first command, which must be READY with a socket type in `fitting`.
pub(super) fn check_ready(body: &[u8], fitting: Fitting) -> Result<(), ProtocolError> {
    check_error(body)?;
    let mut rest = body.strip_prefix(READY).ok_or(ProtocolError::NotReady)?;
    let mut socket_type: &[u8] = b"";
    while !rest.is_empty() {
        let (name, value, after) =
            split_property(rest).ok_or(ProtocolError::Malformed { command: "READY" })?;
        if name.eq_ignore_ascii_case(SOCKET_TYPE) {
            socket_type = value;
        }
        rest = after;
    }
    if fitting.types.iter().any(|fits| fits.as_bytes() == socket_type) {
        return Ok(());
    }
    Err(ProtocolError::SocketType { found: quote(socket_type), expected: fitting.text })
}

/// Fails if `body` is an ERROR command.
pub(super) fn check_error(body: &[u8]) -> Result<(), ProtocolError> {
    let Some(rest) = body.strip_prefix(b"\x05ERROR") else {
        return Ok(());
    };
    let reason = rest
        .split_first()
        .map_or(rest, |(size, reason)| reason.get(..usize::from(*size)).unwrap_or(reason));
    Err(ProtocolError::Refused { reason: quote(reason) })
}

/// The socket types that are compatible with ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fitting {
    pub(super) types: &'static [&'static str],
    /// The types as text, for errors.
    pub(super) text: &'static str,
}

/// Splits off `name-length name value-length value`. Returns `None` if `input` is too short.
fn split_property(input: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (name_bytes, rest) = input.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*name_bytes))?;
    let (value_bytes, rest) = rest.split_first_chunk()?;
    let value_bytes = usize::try_from(u32::from_be_bytes(*value_bytes)).ok()?;
    let (value, rest) = rest.split_at_checked(value_bytes)?;
    Some((name, value, rest))
}

/// The beginning of a peer's text, escaped, without trailing zeros.
fn quote(text: &[u8]) -> String {
    let end = text.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let shown = text.get(..end.min(QUOTE_BYTES_MAX)).unwrap_or_default();
    shown.escape_ascii().to_string()
}
