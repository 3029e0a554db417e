use super::{read, write};
use std::ptr::NonNull;

#[test]
fn every_offset_and_length_arrives() {
    const ROOM: usize = 64;
    for offset in 0..9 {
        for length in 0..40 {
            let mut memory = [0xEE_u8; ROOM];
            let from: Vec<u8> = (1..=length).collect();
            let to = NonNull::new(memory[offset..].as_mut_ptr()).expect("an address");
            // SAFETY: at most 8 + 40 of 64 bytes, and no reference is used between these lines.
            unsafe { write(to, &from) };
            let mut back = vec![0; from.len()];
            // SAFETY: as above.
            unsafe { read(to, &mut back) };
            assert_eq!(back, from);
            let end = offset + from.len();
            assert_eq!(&memory[offset..end], &*from);
            assert!(memory[..offset].iter().chain(&memory[end..]).all(|byte| *byte == 0xEE));
        }
    }
}
