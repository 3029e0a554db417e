use super::{Checksum, Summing};
use crc_fast::{CrcAlgorithm, checksum};

/// The published check value: bytes on a disk must have the same checksum in every later version.
#[test]
fn the_algorithm_is_the_published_one() {
    assert_eq!(checksum(CrcAlgorithm::Crc64Nvme, b"123456789"), 0xAE8B_1486_0A79_9888);
}

/// Expected value computed in Python with a table of 256 entries.
#[test]
fn the_value_of_a_block_never_changes() {
    let block: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    assert_eq!(Checksum::of(0x0123_4567_89AB_CDEF, &block), Checksum(0xB34C_1563_9FB7_1B18));
}

#[test]
fn pieces_add_up() {
    let block: Vec<u8> = (0..=250).cycle().take(10_000).collect();
    for piece in [1, 7, 64, 4096, 10_000] {
        let mut summing = Summing::new();
        block.chunks(piece).for_each(|piece| summing.update(piece));
        assert_eq!(summing.seal(5), Checksum::of(5, &block), "pieces of {piece}");
    }
}

#[test]
fn every_flipped_bit_and_every_other_name_is_noticed() {
    let mut block: Vec<u8> = (0..=250).cycle().take(1_000).collect();
    let good = Checksum::of(5, &block);
    for at in 0..block.len() {
        for bit in 0..8 {
            block[at] ^= 1 << bit;
            assert_ne!(Checksum::of(5, &block), good);
            block[at] ^= 1 << bit;
        }
    }
    for bit in 0..64 {
        assert_ne!(Checksum::of(5 ^ (1 << bit), &block), good);
    }
    // Trailing zeros and their number change the checksum.
    block.push(0);
    assert_ne!(Checksum::of(5, &block), good);
    assert_ne!(Checksum::of(5, &[0; 10]), Checksum::of(5, &[0; 11]));
}
