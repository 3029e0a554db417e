use super::{HEADER_BYTES, decode, encode};
use crate::block::{Fingerprint, Sealed};
use crate::checksum::Checksum;
use crate::error::TransferError;
use crate::testing::block;

#[test]
fn headers_come_back_and_others_are_refused() {
    let fingerprint = Fingerprint([3; 32]);
    let identity = block(7, 100).identity;
    let sealed = Sealed { identity, bytes: 100, checksum: Checksum(5) };
    let header = encode(&sealed, fingerprint);
    assert_eq!(header.len(), HEADER_BYTES);
    assert_eq!(decode(&header, fingerprint, 100), Ok(sealed));
    let other = decode(&header, Fingerprint([4; 32]), 100);
    assert!(matches!(other, Err(TransferError::Foreign(_))), "{other:?}");
    assert!(decode(&header, fingerprint, 99).is_err());
    for at in 0..HEADER_BYTES {
        let mut damaged = header.clone();
        damaged[at] ^= 1;
        assert!(decode(&damaged, fingerprint, 100).is_err(), "byte {at}");
        assert!(decode(&header[..at], fingerprint, 100).is_err(), "{at} bytes");
    }
}
