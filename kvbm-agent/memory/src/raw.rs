//! Copies from and to memory that others may write at the same moment.

use std::ptr::NonNull;

/// The unit of a copy. A volatile access of this size is one instruction on the machines that Kvasir runs on.
type Word = u64;
const WORD_BYTES: usize = size_of::<Word>();

/// Copies `into.len()` bytes that others may write meanwhile. Each byte that arrives was there at some moment of the copy;
/// they need not have been there together.
///
/// # Safety
/// `from` is valid for reads of `into.len()` bytes, and no reference to these bytes exists in this process.
pub(crate) unsafe fn read(from: NonNull<u8>, into: &mut [u8]) {
    let start = from.as_ptr();
    let head = start.align_offset(WORD_BYTES).min(into.len());
    let (head_bytes, rest) = into.split_at_mut(head);
    let (words, tail) = rest.as_chunks_mut::<WORD_BYTES>();
    for (offset, byte) in head_bytes.iter_mut().enumerate() {
        // SAFETY: `offset` is below `into.len()`, for which the caller answers. A volatile read of plain integers is
        // sound whatever another process writes.
        *byte = unsafe { start.add(offset).read_volatile() };
    }
    // SAFETY: `head` is at most `into.len()`.
    let aligned = unsafe { start.add(head) };
    for (index, word) in words.iter_mut().enumerate() {
        // SAFETY: the words lie in `into.len()` bytes, and `aligned` has a word's alignment, unless there are none.
        *word = unsafe { aligned.cast::<Word>().add(index).read_volatile() }.to_ne_bytes();
    }
    // SAFETY: head and words together are at most `into.len()` bytes.
    let last = unsafe { aligned.add(size_of_val(words)) };
    for (offset, byte) in tail.iter_mut().enumerate() {
        // SAFETY: as for the head.
        *byte = unsafe { last.add(offset).read_volatile() };
    }
}

/// Copies `from` to memory that others may read or write meanwhile.
///
/// # Safety
/// `to` is valid for writes of `from.len()` bytes, and no reference to these bytes exists in this process.
pub(crate) unsafe fn write(to: NonNull<u8>, from: &[u8]) {
    let start = to.as_ptr();
    let head = start.align_offset(WORD_BYTES).min(from.len());
    let (head_bytes, rest) = from.split_at(head);
    let (words, tail) = rest.as_chunks::<WORD_BYTES>();
    for (offset, byte) in head_bytes.iter().enumerate() {
        // SAFETY: `offset` is below `from.len()`, for which the caller answers.
        unsafe { start.add(offset).write_volatile(*byte) };
    }
    // SAFETY: `head` is at most `from.len()`.
    let aligned = unsafe { start.add(head) };
    for (index, word) in words.iter().enumerate() {
        // SAFETY: the words lie in `from.len()` bytes, and `aligned` has a word's alignment, unless there are none.
        unsafe { aligned.cast::<Word>().add(index).write_volatile(Word::from_ne_bytes(*word)) };
    }
    // SAFETY: head and words together are at most `from.len()` bytes.
    let last = unsafe { aligned.add(size_of_val(words)) };
    for (offset, byte) in tail.iter().enumerate() {
        // SAFETY: as for the head.
        unsafe { last.add(offset).write_volatile(*byte) };
    }
}

#[cfg(test)]
#[path = "raw_test.rs"]
mod tests;
