//! Prefetches memory into the processor's cache.

use std::ptr::from_ref;

/// Starts to load the cache line of a value's first byte, without waiting. Only on x86-64 and AArch64;
/// elsewhere without effect.
#[inline]
#[cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    expect(unsafe_code, reason = "see SAFETY")
)]
pub(crate) fn prefetch<T>(value: &T) {
    let at = from_ref(value).cast::<i8>();
    // SAFETY: the instruction is a hint. It has no effect visible to the program, and does not fault for any
    // address. The address is of a live value.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at);
    }
    // SAFETY: as for x86-64. It changes neither flags nor the stack. (Its intrinsic is not stable.)
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
