//! The functions of NIXL's C interface that are used, and nothing else. `libnixl_capi.so` has no version of its own: a library
//! that lacks one of these names is refused.

use super::NixlError;
use libloading::{Library as Loaded, Symbol};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;

/// One of NIXL's objects.
pub(super) type Object = *mut c_void;
/// 0, 1 while a transfer runs, or an error.
pub(super) type Status = c_int;

pub(super) const SUCCESS: Status = 0;
pub(super) const IN_PROGRESS: Status = 1;

/// How an agent works, as `nixl_capi_agent_config_s`.
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

/// The system's library of which NIXL's wheel brings a copy under another name; it comes with the system's RDMA libraries. UCX
/// loads both copies. It is loaded first, by itself, so that its initialisers call its own functions (D150).
const SYSTEM_LIBRARY: &str = "libnl-route-3.so.200";

/// Declares the table of functions, and how it is filled.
macro_rules! calls {
    ($($name:ident: $symbol:literal ($($argument:ty),*);)*) => {
        pub(super) struct Calls {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> Status,)*
            /// Frees what the library has allocated for its caller.
            pub(super) free: unsafe extern "C" fn(*mut c_void),
            /// Never unloaded: its threads and UCX's hooks may run until the process ends.
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
    // SAFETY: the caller's field has the type that NIXL's wrapper.h, or stdlib.h, gives to this name.
    let symbol: Result<Symbol<'_, T>, _> = unsafe { library.get(name.to_bytes_with_nul()) };
    let symbol = symbol.map_err(|_none| format!("it has no function {}", name.to_string_lossy()));
    Ok(*symbol?)
}

/// NIXL's library. It stays loaded until the process ends.
#[derive(Clone)]
pub struct Library(pub(super) Arc<Calls>);

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}

impl Library {
    /// Loads `libnixl_capi.so`: a path, or a name that the loader searches for. It blocks the thread.
    ///
    /// # Errors
    /// [`NixlError::Library`] if it is not there, or is another library.
    pub fn load(path: &Path) -> Result<Self, NixlError> {
        let refused = |why: String| NixlError::Library { path: path.to_owned(), why };
        // SAFETY: its initialisers run, as they would when UCX loads it.
        let system = unsafe { Loaded::new(SYSTEM_LIBRARY) };
        // Never unloaded. Many machines have none.
        let _stays_loaded = system.map(ManuallyDrop::new);
        // SAFETY: loading it runs its initialisers, which is what it is for; the operator names the file.
        let library = unsafe { Loaded::new(path) }.map_err(|error| refused(error.to_string()))?;
        Ok(Self(Arc::new(Calls::of(library).map_err(refused)?)))
    }
}

/// What a call's status says.
///
/// # Errors
/// [`NixlError::Call`] for all but success.
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
