//! Bindings of the CUDA driver's interface, limited to the calls that are used.

use libloading::{Library, Symbol};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr::{NonNull, null, null_mut};

/// An address in an accelerator's memory.
pub(super) type DevicePointer = u64;
/// Result of a call: 0, or an error number.
type Status = c_int;

/// Makes the memory usable by every context of the process.
const HOST_ALLOC_PORTABLE: c_uint = 1;

/// The driver's functions, with the types of `cuda.h`.
struct Calls {
    error_string: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
    init: unsafe extern "C" fn(c_uint) -> Status,
    device_count: unsafe extern "C" fn(*mut c_int) -> Status,
    device: unsafe extern "C" fn(*mut c_int, c_int) -> Status,
    retain: unsafe extern "C" fn(*mut *mut c_void, c_int) -> Status,
    release: unsafe extern "C" fn(c_int) -> Status,
    push: unsafe extern "C" fn(*mut c_void) -> Status,
    pop: unsafe extern "C" fn(*mut *mut c_void) -> Status,
    allocate: unsafe extern "C" fn(*mut DevicePointer, usize) -> Status,
    free: unsafe extern "C" fn(DevicePointer) -> Status,
    set: unsafe extern "C" fn(DevicePointer, u8, usize) -> Status,
    copy_in: unsafe extern "C" fn(DevicePointer, *const c_void, usize) -> Status,
    copy_out: unsafe extern "C" fn(*mut c_void, DevicePointer, usize) -> Status,
    allocate_host: unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> Status,
    free_host: unsafe extern "C" fn(*mut c_void) -> Status,
}

impl Calls {
    /// Looks up the driver's functions. Fails if one is missing.
    fn load_symbols(library: &Library) -> Result<Self, libloading::Error> {
        fn get<T: Copy>(library: &Library, name: &CStr) -> Result<T, libloading::Error> {
            // SAFETY: the caller's field has the type that cuda.h gives to this name.
            let symbol: Symbol<'_, T> = unsafe { library.get(name.to_bytes_with_nul())? };
            Ok(*symbol)
        }
        Ok(Self {
            error_string: get(library, c"cuGetErrorString")?,
            init: get(library, c"cuInit")?,
            device_count: get(library, c"cuDeviceGetCount")?,
            device: get(library, c"cuDeviceGet")?,
            retain: get(library, c"cuDevicePrimaryCtxRetain")?,
            release: get(library, c"cuDevicePrimaryCtxRelease_v2")?,
            push: get(library, c"cuCtxPushCurrent_v2")?,
            pop: get(library, c"cuCtxPopCurrent_v2")?,
            allocate: get(library, c"cuMemAlloc_v2")?,
            free: get(library, c"cuMemFree_v2")?,
            set: get(library, c"cuMemsetD8_v2")?,
            copy_in: get(library, c"cuMemcpyHtoD_v2")?,
            copy_out: get(library, c"cuMemcpyDtoH_v2")?,
            allocate_host: get(library, c"cuMemHostAlloc")?,
            free_host: get(library, c"cuMemFreeHost")?,
        })
    }

    /// Returns an error with the driver's message, unless `status` is 0.
    fn check(&self, call: &str, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        let mut text = null();
        // SAFETY: the driver writes null or a pointer to a constant string.
        let known = unsafe { (self.error_string)(status, &raw mut text) } == 0 && !text.is_null();
        // SAFETY: not null, and a zero-terminated constant of the driver.
        let text = known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy());
        Err(format!("{call}: {} (error {status})", text.as_deref().unwrap_or("unknown error")))
    }
}

/// An accelerator's primary context, shared within the process.
pub(super) struct Context {
    calls: Calls,
    handle: NonNull<c_void>,
    device: c_int,
    number: u32,
    /// Last field, so that the library is unloaded last.
    _library: Library,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "accelerator {}", self.number)
    }
}

// SAFETY: the driver accepts calls from any thread; each call makes the context current on its own thread.
unsafe impl Send for Context {}
// SAFETY: see above.
unsafe impl Sync for Context {}

impl Context {
    /// Loads the CUDA driver and retains the primary context of accelerator `number`.
    pub(super) fn open(driver: &Path, number: u32) -> Result<Self, String> {
        let name = driver.display();
        // SAFETY: loading the driver runs its initialisers, as intended; the caller names the file.
        let library = unsafe { Library::new(driver) }
            .map_err(|error| format!("no CUDA driver is installed ({name}: {error})"))?;
        let calls = Calls::load_symbols(&library)
            .map_err(|error| format!("{name} is not a CUDA driver, or is too old: {error}"))?;
        // SAFETY: the first call, with the only valid argument.
        calls.check("cuInit", unsafe { (calls.init)(0) })?;
        let mut count = 0;
        // SAFETY: the driver writes one number.
        calls.check("cuDeviceGetCount", unsafe { (calls.device_count)(&raw mut count) })?;
        let ordinal = c_int::try_from(number).ok().filter(|number| *number < count);
        let ordinal = ordinal.ok_or_else(|| {
            format!("accelerator {number} does not exist: the driver has {count}, numbered from 0")
        })?;
        let mut device = 0;
        let mut handle = null_mut();
        // SAFETY: the driver writes one number.
        calls.check("cuDeviceGet", unsafe { (calls.device)(&raw mut device, ordinal) })?;
        // SAFETY: the driver writes one pointer.
        let status = unsafe { (calls.retain)(&raw mut handle, device) };
        calls.check("cuDevicePrimaryCtxRetain", status)?;
        let handle = NonNull::new(handle).ok_or("cuDevicePrimaryCtxRetain: no context")?;
        Ok(Self { calls, handle, device, number, _library: library })
    }

    pub(super) fn device(&self) -> u32 {
        self.number
    }

    /// Runs a driver call with the context current on this thread.
    fn run(&self, call: &str, body: impl FnOnce(&Calls) -> Status) -> Result<(), String> {
        // SAFETY: the context is retained until this value is dropped.
        let pushed = unsafe { (self.calls.push)(self.handle.as_ptr()) };
        self.calls.check("cuCtxPushCurrent", pushed)?;
        let outcome = self.calls.check(call, body(&self.calls));
        let mut popped = null_mut();
        // SAFETY: the driver writes one pointer; the popped context was pushed above.
        let status = unsafe { (self.calls.pop)(&raw mut popped) };
        outcome.and(self.calls.check("cuCtxPopCurrent", status))
    }

    /// Allocates zeroed memory of the accelerator.
    pub(super) fn allocate(&self, bytes: usize) -> Result<DevicePointer, String> {
        let mut first = 0;
        // SAFETY: the driver writes one address.
        self.run("cuMemAlloc", |calls| unsafe { (calls.allocate)(&raw mut first, bytes) })?;
        // SAFETY: `bytes` bytes were allocated there.
        let zeroed = self.run("cuMemsetD8", |calls| unsafe { (calls.set)(first, 0, bytes) });
        if let Err(error) = zeroed {
            // SAFETY: allocated above, and not handed out.
            unsafe { self.free(first) };
            return Err(error);
        }
        Ok(first)
    }

    /// # Safety
    /// The memory was allocated by this context and is no longer used.
    pub(super) unsafe fn free(&self, first: DevicePointer) {
        // SAFETY: by the contract.
        let outcome = self.run("cuMemFree", |calls| unsafe { (calls.free)(first) });
        debug_assert!(outcome.is_ok(), "{outcome:?}");
    }

    /// Copies memory of the accelerator to `into`.
    ///
    /// # Safety
    /// The range is in live memory that this context allocated at `first`.
    pub(super) unsafe fn copy_out(
        &self,
        first: DevicePointer,
        offset: usize,
        into: &mut [u8],
    ) -> Result<(), String> {
        let at = address(first, offset)?;
        // SAFETY: by the contract; `into` is valid for its length, and the call returns when the bytes have arrived.
        self.run("cuMemcpyDtoH", |calls| unsafe {
            (calls.copy_out)(into.as_mut_ptr().cast(), at, into.len())
        })
    }

    /// Copies `from` to memory of the accelerator.
    ///
    /// # Safety
    /// Same contract as `copy_out`.
    pub(super) unsafe fn copy_in(
        &self,
        first: DevicePointer,
        offset: usize,
        from: &[u8],
    ) -> Result<(), String> {
        let at = address(first, offset)?;
        // SAFETY: by the contract; `from` is valid for its length, and the call returns when it no longer reads `from`.
        self.run("cuMemcpyHtoD", |calls| unsafe {
            (calls.copy_in)(at, from.as_ptr().cast(), from.len())
        })
    }

    /// Allocates zeroed host memory that the driver locks (pins).
    pub(super) fn allocate_host(&self, bytes: usize) -> Result<NonNull<u8>, String> {
        let mut first = null_mut();
        // SAFETY: the driver writes one address.
        self.run("cuMemHostAlloc", |calls| unsafe {
            (calls.allocate_host)(&raw mut first, bytes, HOST_ALLOC_PORTABLE)
        })?;
        let first = NonNull::new(first).ok_or("cuMemHostAlloc: no memory")?.cast::<u8>();
        // SAFETY: `bytes` bytes were allocated there and belong only to the caller.
        unsafe { first.write_bytes(0, bytes) };
        Ok(first)
    }

    /// # Safety
    /// The memory was allocated by this context and is no longer used.
    pub(super) unsafe fn free_host(&self, first: NonNull<u8>) {
        // SAFETY: by the contract.
        let outcome =
            self.run("cuMemFreeHost", |calls| unsafe { (calls.free_host)(first.as_ptr().cast()) });
        debug_assert!(outcome.is_ok(), "{outcome:?}");
    }
}

fn address(first: DevicePointer, offset: usize) -> Result<DevicePointer, String> {
    let offset = u64::try_from(offset).ok();
    offset.and_then(|offset| first.checked_add(offset)).ok_or_else(|| "no such address".to_owned())
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained when opened, and released once.
        let status = unsafe { (self.calls.release)(self.device) };
        debug_assert_eq!(status, 0, "cuDevicePrimaryCtxRelease");
    }
}
