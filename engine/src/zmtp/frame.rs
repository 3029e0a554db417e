//! ZMTP frames: parses headers and writes frames.

use bytes::{BufMut, BytesMut};

use super::ProtocolError;

const FLAG_MORE: u8 = 0b001;
const FLAG_LONG: u8 = 0b010;
const FLAG_COMMAND: u8 = 0b100;
const FLAGS_RESERVED: u8 = !(FLAG_MORE | FLAG_LONG | FLAG_COMMAND);

const SHORT_HEADER_BYTES: usize = 2;
const LONG_HEADER_BYTES: usize = 9;

/// What a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    Command,
    /// A frame of a message, but not its last.
    More,
    /// The last frame of a message.
    Last,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) kind: FrameKind,
    /// Announced length of the body in bytes, not yet checked against limits.
    pub(super) body_bytes: u64,
    /// Length of this header in bytes.
    pub(super) header_bytes: usize,
}

// === impl FrameHeader ===

impl FrameHeader {
    /// Parses the header at the start of `input`; `None` while it is incomplete.
    pub(super) fn parse(input: &[u8]) -> Result<Option<Self>, ProtocolError> {
        let Some((&flags, rest)) = input.split_first() else {
            return Ok(None);
        };
        let kind = match (flags & FLAG_COMMAND != 0, flags & FLAG_MORE != 0) {
            _ if flags & FLAGS_RESERVED != 0 => return Err(ProtocolError::Flags { flags }),
            (true, true) => return Err(ProtocolError::Flags { flags }),
            (true, false) => FrameKind::Command,
            (false, true) => FrameKind::More,
            (false, false) => FrameKind::Last,
        };
        let long = flags & FLAG_LONG != 0;
        let (body_bytes, header_bytes) = if long {
            (rest.first_chunk().map(|size| u64::from_be_bytes(*size)), LONG_HEADER_BYTES)
        } else {
            (rest.first().map(|&size| u64::from(size)), SHORT_HEADER_BYTES)
        };
        Ok(body_bytes.map(|body_bytes| Self { kind, body_bytes, header_bytes }))
    }
}

/// Appends one frame, in the short form if it fits.
pub(super) fn put_frame(output: &mut BytesMut, kind: FrameKind, body: &[u8]) {
    let flags = match kind {
        FrameKind::Command => FLAG_COMMAND,
        FrameKind::More => FLAG_MORE,
        FrameKind::Last => 0,
    };
    if let Ok(size) = u8::try_from(body.len()) {
        output.put_u8(flags);
        output.put_u8(size);
    } else {
        output.put_u8(flags | FLAG_LONG);
        output.put_u64(u64::try_from(body.len()).unwrap_or(u64::MAX));
    }
    output.put_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_headers_are_read_back_and_never_early() {
        for kind in [FrameKind::Command, FrameKind::More, FrameKind::Last] {
            for size in [0, 1, 255, 256, 70_000] {
                let mut output = BytesMut::new();
                put_frame(&mut output, kind, &vec![7; size]);
                let header_bytes = output.len() - size;
                assert_eq!(header_bytes, if size < 256 { 2 } else { 9 });
                let expected = FrameHeader { kind, body_bytes: size as u64, header_bytes };
                assert_eq!(FrameHeader::parse(&output), Ok(Some(expected)));
                for cut in 0..header_bytes {
                    assert_eq!(FrameHeader::parse(&output[..cut]), Ok(None), "cut at {cut}");
                }
            }
        }
    }

    #[test]
    fn a_short_frame_may_use_the_long_form() {
        let header = FrameHeader::parse(&[2, 0, 0, 0, 0, 0, 0, 0, 5]).unwrap().unwrap();
        assert_eq!((header.body_bytes, header.header_bytes), (5, 9));
    }

    #[test]
    fn only_six_flag_bytes_are_legal() {
        let legal: Vec<u8> =
            (0..=255).filter(|flags| FrameHeader::parse(&[*flags]).is_ok()).collect();
        assert_eq!(legal, [0, 1, 2, 3, 4, 6]);
    }
}
