//! Temporary NIXL objects for single calls, freed on drop.

use super::calls::{Calls, Object, Status, check};
use super::{NixlError, Plugin};
use std::ffi::{CString, c_int};
use std::ptr::{null, null_mut};

/// Kinds of memory, with NIXL's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// Host memory.
    Dram = 0,
    /// A file. Addresses are offsets, and the device is the file descriptor.
    File = 4,
}

/// A contiguous range of memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch {
    pub(super) address: usize,
    pub(super) bytes: usize,
    pub(super) device: u64,
}

/// A NIXL object and the function that frees it.
pub(super) struct Owned {
    pub(super) object: Object,
    free: unsafe extern "C" fn(Object) -> Status,
}

impl Owned {
    /// Creates an object with the NIXL function `create`. `free` destroys the object.
    fn new(
        call: &'static str,
        create: impl FnOnce(*mut Object) -> Status,
        free: unsafe extern "C" fn(Object) -> Status,
    ) -> Result<Self, NixlError> {
        let mut object = null_mut();
        check(call, create(&raw mut object))?;
        Ok(Self { object, free })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: `free` matches the kind of `object`, which is freed only here.
        let status = unsafe { (self.free)(self.object) };
        debug_assert_eq!(status, 0, "an object of NIXL could not be freed");
    }
}

/// Converts a text to a C string, if its length is valid.
pub(super) fn text(field: &'static str, value: &str, max: usize) -> Result<CString, NixlError> {
    let fits = (1..=max).contains(&value.len());
    let text = fits.then(|| CString::new(value).ok()).flatten();
    text.ok_or(NixlError::Text { field, max })
}

/// Creates the list of a plugin's parameters.
pub(super) fn parameters(calls: &Calls, plugin: &Plugin) -> Result<Owned, NixlError> {
    const BYTES_MAX: usize = 4 << 10;
    // SAFETY: NIXL writes one pointer.
    let create = |to| unsafe { (calls.create_params)(to) };
    let list = Owned::new("create_params", create, calls.destroy_params)?;
    for (name, value) in &plugin.parameters {
        let name = text("a parameter's name", name, BYTES_MAX)?;
        let value = text("a parameter's value", value, BYTES_MAX)?;
        // SAFETY: the list is valid; both texts are zero-terminated, and NIXL copies them.
        let status = unsafe { (calls.params_add)(list.object, name.as_ptr(), value.as_ptr()) };
        check("params_add", status)?;
    }
    Ok(list)
}

/// Creates options that select one backend.
pub(super) fn options(calls: &Calls, backend: Object) -> Result<Owned, NixlError> {
    // SAFETY: NIXL writes one pointer.
    let create = |to| unsafe { (calls.create_opt_args)(to) };
    let options = Owned::new("create_opt_args", create, calls.destroy_opt_args)?;
    // SAFETY: both are valid; the backend outlives the options in the agent.
    let status = unsafe { (calls.opt_args_add_backend)(options.object, backend) };
    check("opt_args_add_backend", status)?;
    Ok(options)
}

/// Creates a list of one range, for registration.
pub(super) fn registered(calls: &Calls, memory: Memory, at: Stretch) -> Result<Owned, NixlError> {
    // SAFETY: NIXL writes one pointer.
    let create = |to| unsafe { (calls.create_reg_dlist)(memory as c_int, to) };
    let list = Owned::new("create_reg_dlist", create, calls.destroy_reg_dlist)?;
    // SAFETY: the list is valid; there is no further metadata. Adding does not access the memory.
    let status = unsafe {
        (calls.reg_dlist_add_desc)(list.object, at.address, at.bytes, at.device, null(), 0)
    };
    check("reg_dlist_add_desc", status)?;
    Ok(list)
}

/// Creates the list of the ranges on one side of a transfer.
pub(super) fn side(
    calls: &Calls,
    memory: Memory,
    stretches: impl Iterator<Item = Stretch>,
) -> Result<Owned, NixlError> {
    // SAFETY: NIXL writes one pointer.
    let create = |to| unsafe { (calls.create_xfer_dlist)(memory as c_int, to) };
    let list = Owned::new("create_xfer_dlist", create, calls.destroy_xfer_dlist)?;
    for at in stretches {
        // SAFETY: the list is valid. Adding does not access the memory.
        let status =
            unsafe { (calls.xfer_dlist_add_desc)(list.object, at.address, at.bytes, at.device) };
        check("xfer_dlist_add_desc", status)?;
    }
    Ok(list)
}
