//! Bindings of NIXL's C interface, limited to the functions that are used. `libnixl_capi.so` has no version number: a
//! library that lacks a name is refused.

use super::NixlError;
use libloading::{Library as Loaded, Symbol};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;

/// A handle of a NIXL object.
pub(super) type Object = *mut c_void;
/// Result of a call: 0, 1 while a transfer is running, or an error.
pub(super) type Status = c_int;

pub(super) const SUCCESS: Status = 0;
pub(super) const IN_PROGRESS: Status = 1;

/// Configuration of an agent, as `nixl_capi_agent_config_s`.
#[repr(C)]
pub(super) struct AgentConfig {
    pub(super) enable_prog_thread: bool,
    pub(super) enable_listen_thread: bool,
    pub(super) listen_port: c_int,
    pub(super) thread_sync: c_int,
    pub(super) num_workers: c_uint,
    pub(super) pthr_delay_us: u64,
    pub(super) lthr_delay_us: u64,
    pub(super) capture_telemetry: bool,
}

/// A system library of which NIXL's wheel contains a renamed copy; it belongs to the system's RDMA libraries. UCX loads
/// both copies. This one is loaded first, alone, so that its initialisers call its own functions (D150).
const SYSTEM_LIBRARY: &str = "libnl-route-3.so.200";

/// Declares the function table and its loader.
macro_rules! calls {
    ($($name:ident: $symbol:literal ($($argument:ty),*);)*) => {
        pub(super) struct Calls {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> Status,)*
            /// Frees memory that the library has allocated for its caller.
            pub(super) free: unsafe extern "C" fn(*mut c_void),
            /// Never unloaded, because the library's threads and UCX's hooks may run until the process ends.
            _library: ManuallyDrop<Loaded>,
        }

        impl Calls {
            fn of(library: Loaded) -> Result<Self, String> {
                Ok(Self {
                    $($name: get(&library, $symbol)?,)*
                    free: get(&library, c"free")?,
                    _library: ManuallyDrop::new(library),
                })
            }
        }
    };
}

calls! {
    create_agent: c"nixl_capi_create_configured_agent" (*const c_char, *const AgentConfig, *mut Object);
    destroy_agent: c"nixl_capi_destroy_agent" (Object);
    create_params: c"nixl_capi_create_params" (*mut Object);
    params_add: c"nixl_capi_params_add" (Object, *const c_char, *const c_char);
    destroy_params: c"nixl_capi_destroy_params" (Object);
    create_backend: c"nixl_capi_create_backend" (Object, *const c_char, Object, *mut Object);
    destroy_backend: c"nixl_capi_destroy_backend" (Object);
    create_opt_args: c"nixl_capi_create_opt_args" (*mut Object);
    opt_args_add_backend: c"nixl_capi_opt_args_add_backend" (Object, Object);
    destroy_opt_args: c"nixl_capi_destroy_opt_args" (Object);
    create_reg_dlist: c"nixl_capi_create_reg_dlist" (c_int, *mut Object);
    reg_dlist_add_desc: c"nixl_capi_reg_dlist_add_desc" (Object, usize, usize, u64, *const c_void, usize);
    destroy_reg_dlist: c"nixl_capi_destroy_reg_dlist" (Object);
    register_mem: c"nixl_capi_register_mem" (Object, Object, Object);
    get_local_md: c"nixl_capi_get_local_md" (Object, *mut *mut c_void, *mut usize);
    load_remote_md: c"nixl_capi_load_remote_md" (Object, *const c_void, usize, *mut *mut c_char);
    invalidate_remote_md: c"nixl_capi_invalidate_remote_md" (Object, *const c_char);
    create_xfer_dlist: c"nixl_capi_create_xfer_dlist" (c_int, *mut Object);
    xfer_dlist_add_desc: c"nixl_capi_xfer_dlist_add_desc" (Object, usize, usize, u64);
    destroy_xfer_dlist: c"nixl_capi_destroy_xfer_dlist" (Object);
    create_xfer_req: c"nixl_capi_create_xfer_req" (Object, c_int, Object, Object, *const c_char, *mut Object, Object);
    post_xfer_req: c"nixl_capi_post_xfer_req" (Object, Object, Object);
    get_xfer_status: c"nixl_capi_get_xfer_status" (Object, Object);
    release_xfer_req: c"nixl_capi_release_xfer_req" (Object, Object);
    destroy_xfer_req: c"nixl_capi_destroy_xfer_req" (Object);
}

fn get<T: Copy>(library: &Loaded, name: &CStr) -> Result<T, String> {
    // SAFETY: the caller's field has the type that NIXL's wrapper.h, or stdlib.h, declares for this name.
    let symbol: Result<Symbol<'_, T>, _> = unsafe { library.get(name.to_bytes_with_nul()) };
    let symbol = symbol.map_err(|_none| format!("it has no function {}", name.to_string_lossy()));
    Ok(*symbol?)
}

/// The loaded NIXL library. It stays loaded until the process ends.
#[derive(Clone)]
pub struct Library(pub(super) Arc<Calls>);

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}

impl Library {
    /// Loads `libnixl_capi.so` from a path, or by a name that the loader searches for. Blocks the thread.
    ///
    /// # Errors
    /// [`NixlError::Library`] if the file is missing, or is a different library.
    pub fn load(path: &Path) -> Result<Self, NixlError> {
        let refused = |why: String| NixlError::Library { path: path.to_owned(), why };
        // SAFETY: the library's initialisers run, as they would when UCX loads it.
        let system = unsafe { Loaded::new(SYSTEM_LIBRARY) };
        // Never unloaded. Many machines do not have this library.
        let _stays_loaded = system.map(ManuallyDrop::new);
        // SAFETY: loading the library runs its initialisers, as intended; the operator names the file.
        let library = unsafe { Loaded::new(path) }.map_err(|error| refused(error.to_string()))?;
        Ok(Self(Arc::new(Calls::of(library).map_err(refused)?)))
    }
}

/// Converts the status of a call to a result.
///
/// # Errors
/// [`NixlError::Call`] for every status except success.
pub(super) fn check(call: &'static str, status: Status) -> Result<(), NixlError> {
    let why = match status {
        SUCCESS => return Ok(()),
        IN_PROGRESS => "still running",
        -1 => "invalid parameter",
        -2 => "the backend failed, or the peer has gone",
        -3 => "invalid state",
        -4 => "an exception",
        -6 => "not found: the peer is not known, or no backend serves this memory",
        _ => "an unknown error",
    };
    Err(NixlError::Call { call, why })
}
