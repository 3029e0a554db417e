//! Copies from and to memory that other processes may write concurrently.

use std::ptr::NonNull;

/// The unit of a copy. On the machines that Kvasir supports, a volatile access of this size is one instruction.
type Word = u64;
const WORD_BYTES: usize = size_of::<Word>();

/// Copies `into.len()` bytes that may be written concurrently. Each copied byte was present at some moment during the
/// copy, but not necessarily at the same moment as the others.
///
/// # Safety
/// `from` is valid for reads of `into.len()` bytes, and no reference to these bytes exists in this process.
pub(crate) unsafe fn read(from: NonNull<u8>, into: &mut [u8]) {
    let start = from.as_ptr();
    let head = start.align_offset(WORD_BYTES).min(into.len());
    let (head_bytes, rest) = into.split_at_mut(head);
    let (words, tail) = rest.as_chunks_mut::<WORD_BYTES>();
    for (offset, byte) in head_bytes.iter_mut().enumerate() {
        // SAFETY: `offset` is less than `into.len()`, which the caller guarantees to be valid. A volatile read of plain
        // integers is sound whatever another process writes.
        *byte = unsafe { start.add(offset).read_volatile() };
    }
    // SAFETY: `head` is at most `into.len()`.
    let aligned = unsafe { start.add(head) };
    for (index, word) in words.iter_mut().enumerate() {
        // SAFETY: the words are within `into.len()` bytes, and `aligned` has a word's alignment, unless there are no
        // words.
        *word = unsafe { aligned.cast::<Word>().add(index).read_volatile() }.to_ne_bytes();
    }
    // SAFETY: head and words together are at most `into.len()` bytes.
    let last = unsafe { aligned.add(size_of_val(words)) };
    for (offset, byte) in tail.iter_mut().enumerate() {
        // SAFETY: same as for the head.
        *byte = unsafe { last.add(offset).read_volatile() };
    }
}

/// Copies `from` to memory that may be read or written concurrently.
///
/// # Safety
/// `to` is valid for writes of `from.len()` bytes, and no reference to these bytes exists in this process.
pub(crate) unsafe fn write(to: NonNull<u8>, from: &[u8]) {
    let start = to.as_ptr();
    let head = start.align_offset(WORD_BYTES).min(from.len());
    let (head_bytes, rest) = from.split_at(head);
    let (words, tail) = rest.as_chunks::<WORD_BYTES>();
    for (offset, byte) in head_bytes.iter().enumerate() {
        // SAFETY: `offset` is less than `from.len()`, which the caller guarantees to be valid.
        unsafe { start.add(offset).write_volatile(*byte) };
    }
    // SAFETY: `head` is at most `from.len()`.
    let aligned = unsafe { start.add(head) };
    for (index, word) in words.iter().enumerate() {
        // SAFETY: the words are within `from.len()` bytes, and `aligned` has a word's alignment, unless there are no
        // words.
        unsafe { aligned.cast::<Word>().add(index).write_volatile(Word::from_ne_bytes(*word)) };
    }
    // SAFETY: head and words together are at most `from.len()` bytes.
    let last = unsafe { aligned.add(size_of_val(words)) };
    for (offset, byte) in tail.iter().enumerate() {
        // SAFETY: same as for the head.
        unsafe { last.add(offset).write_volatile(*byte) };
    }
}

#[cfg(test)]
#[path = "raw_test.rs"]
mod tests;
