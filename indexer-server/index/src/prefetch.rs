//! Fetching memory ahead of its use.

use std::ptr::from_ref;

/// Asks the processor to fetch the cache line in which a value begins, without waiting for it. Does nothing unless the processor
/// is an x86-64 or an AArch64.
#[inline]
#[cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    expect(unsafe_code, reason = "see SAFETY")
)]
pub(crate) fn prefetch<T>(value: &T) {
    let at = from_ref(value).cast::<i8>();
    // SAFETY: the instruction is a hint. It reads and writes nothing that a program can see, and does not fault, whatever the
    // address is. This one is of a value that is there.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at);
    }
    // SAFETY: as above. It changes neither flags nor the stack. (Its intrinsic is not stable.)
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "prfm pldl1keep, [{at}]",
            at = in(reg) at,
            options(readonly, nostack, preserves_flags),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}
