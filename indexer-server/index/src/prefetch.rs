//! Fetching memory ahead of its use.

use std::ptr::from_ref;

/// Asks the processor to fetch the cache line in which a value begins, without waiting for it. Does nothing unless the processor
/// is an x86-64.
#[inline]
#[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "see SAFETY"))]
pub(crate) fn prefetch<T>(value: &T) {
    let at = from_ref(value).cast::<i8>();
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction is a hint. It reads and writes nothing that a program can see, and does not fault, whatever the
    // address is. This one is of a value that is there.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
