use super::{
    DESCRIPTION_BYTES_MAX, Entry, Geometry, Header, NoHeader, PAGE_BYTES, RECORD_BYTES, Record,
    record_offset,
};
use crate::block::{Fingerprint, Identity, Sealed};
use crate::checksum::Checksum;

fn header() -> Header {
    Header {
        block_bytes: 65_536,
        slots: 7,
        fingerprint: Fingerprint([9; 32]),
        file_id: 11,
        description: "llama, 32 layers".to_owned(),
    }
}

fn record() -> Record {
    let identity =
        Identity { sequence_hash: 0, parent: Some(0), local_hash: u64::MAX, position: 3 };
    Record { block: Sealed { identity, bytes: 65_536, checksum: Checksum(5) }, write_number: 8 }
}

#[test]
fn headers_come_back_and_damage_is_noticed() {
    let page = header().encode();
    assert_eq!(page.len(), PAGE_BYTES);
    assert_eq!(Header::decode(&page), Ok(header()));
    assert_eq!(Header::decode(&[0; PAGE_BYTES]), Err(NoHeader::Empty));
    assert_eq!(Header::decode(b"#!/bin/sh"), Err(NoHeader::Foreign));
    let mut other = page.clone();
    other[8] = 2;
    assert_eq!(Header::decode(&other), Err(NoHeader::Version(2)));
    for at in 12..80 + DESCRIPTION_BYTES_MAX {
        let mut damaged = page.clone();
        damaged[at] ^= 1;
        assert_eq!(Header::decode(&damaged), Err(NoHeader::Damaged), "byte {at}");
    }
}

#[test]
fn long_descriptions_are_cut_at_a_character() {
    let description = "ö".repeat(DESCRIPTION_BYTES_MAX);
    let page = Header { description, ..header() }.encode();
    let read = Header::decode(&page).expect("a header");
    assert_eq!(read.description, "ö".repeat(DESCRIPTION_BYTES_MAX / 2));
}

#[test]
fn records_come_back_for_their_file_and_slot_only() {
    let bytes = record().encode(11, 4);
    assert_eq!(bytes.len(), RECORD_BYTES);
    assert_eq!(Entry::decode(&bytes, 11, 4, 65_536), Entry::Block(record()));
    assert_eq!(Entry::decode(&bytes, 11, 5, 65_536), Entry::Damaged);
    assert_eq!(Entry::decode(&bytes, 12, 4, 65_536), Entry::Damaged);
    assert_eq!(Entry::decode(&bytes, 11, 4, 65_535), Entry::Damaged);
    assert_eq!(Entry::decode(&[0; RECORD_BYTES], 11, 4, 65_536), Entry::Empty);
    for at in 0..RECORD_BYTES {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert_eq!(Entry::decode(&damaged, 11, 4, 65_536), Entry::Damaged, "byte {at}");
    }
}

#[test]
fn nothing_overlaps_and_nothing_overflows() {
    let geometry = Geometry::new(5000, 100).expect("a geometry");
    assert_eq!(geometry.stride_bytes, 8192);
    assert_eq!((record_offset(0), record_offset(100)), (0, 6400));
    assert_eq!(geometry.slot_offset(0), geometry.data_offset);
    assert_eq!(geometry.slot_offset(100), geometry.file_bytes);
    assert_eq!(Geometry::new(0, 1), None);
    assert_eq!(Geometry::new(1, 0), None);
    assert_eq!(Geometry::new(usize::MAX, 1), None);
    let largest = usize::try_from(u32::MAX).expect("64 bits");
    assert_eq!(Geometry::new(largest, u32::MAX), None);
}
