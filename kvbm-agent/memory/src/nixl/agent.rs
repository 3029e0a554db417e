use super::calls::{AgentConfig, Calls, IN_PROGRESS, Object, SUCCESS, check};
use super::lists::{Memory, Owned, Stretch, options, parameters, registered, side, text};
use super::{Library, METADATA_BYTES_MAX, NAME_BYTES_MAX, NixlError, PIECES_MAX, Plugin};
use crate::arena::{Arena, WriteSlot};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int};
use std::fmt;
use std::fs::File;
use std::mem::{self, ManuallyDrop};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::slice;
use std::sync::Arc;

/// Direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the far side into slots.
    Read = 0,
    /// From slots to the far side.
    Write = 1,
}

/// A remote agent whose metadata was loaded.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer(CString);

/// A file that is registered with an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId(usize);

/// The remote side of a transfer.
#[derive(Debug, Clone, Copy)]
pub enum Far<'a> {
    /// A peer's memory, at the peer's addresses.
    Peer(&'a Peer),
    /// A file, at offsets.
    File(FileId),
}

/// A slot and its position on the remote side. `with` moves together with the slot.
#[derive(Debug)]
pub struct Piece<T> {
    /// The slot. Its complete block is transferred. It is dropped before `with`.
    pub slot: WriteSlot,
    /// Start of the block on the remote side.
    pub at: u64,
    /// Data that belongs to the slot.
    pub with: T,
}

/// Id of an agent's transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransferId(u64);

/// State of a transfer.
#[derive(Debug)]
pub enum Progress<T> {
    /// The transfer is running.
    Running,
    /// All bytes have arrived.
    Done(Vec<Piece<T>>),
    /// The transfer failed. Its slots stay reserved until the agent is dropped, because NIXL may still write them.
    Failed(NixlError),
}

/// A transfer that NIXL may be working on.
struct Flying<T> {
    /// NIXL's request; null after its release.
    request: Object,
    pieces: Vec<Piece<T>>,
}

/// A NIXL agent with one plugin. One thread at a time may use it; NIXL's progress runs on a thread of its own.
///
/// Dropping it destroys NIXL's agent: no byte moves afterwards. Only then are the slots of incomplete transfers freed.
pub struct Agent<T> {
    calls: Arc<Calls>,
    handle: Object,
    backend: Object,
    /// Taken when the agent is destroyed.
    options: Option<Owned>,
    name: CString,
    arenas: Vec<Arc<Arena>>,
    files: Vec<(Arc<File>, u64)>,
    flying: BTreeMap<TransferId, Flying<T>>,
    failed: Vec<Flying<T>>,
    started: u64,
}

// SAFETY: NIXL's objects are bound to no thread. Calls are made through `&mut` or `&self` of a type that is not `Sync`,
// and therefore by one thread at a time. NIXL's own thread takes NIXL's locks.
unsafe impl<T: Send> Send for Agent<T> {}

impl<T> fmt::Debug for Agent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Agent");
        shown.field("name", &self.name).field("running", &self.flying.len());
        shown.field("failed", &self.failed.len()).finish_non_exhaustive()
    }
}

impl<T> Agent<T> {
    /// Creates an agent with one plugin. The name must differ from the names of all agents that it communicates with.
    /// Blocks the thread, up to a second for the first agent of a process.
    ///
    /// # Errors
    /// [`NixlError`] if a text can't be passed to C, or NIXL refuses.
    pub fn new(library: &Library, name: &str, plugin: &Plugin) -> Result<Self, NixlError> {
        let calls = Arc::clone(&library.0);
        let name = text("the agent's name", name, NAME_BYTES_MAX)?;
        let kind = text("the plugin's name", &plugin.name, NAME_BYTES_MAX)?;
        let config = AgentConfig {
            enable_prog_thread: true,
            enable_listen_thread: false,
            listen_port: 0,
            // NIXL's locks, in the strictest mode.
            thread_sync: 1,
            num_workers: 1,
            pthr_delay_us: 100,
            lthr_delay_us: 100,
            capture_telemetry: false,
        };
        let mut handle = null_mut();
        // SAFETY: the name is zero-terminated, the config is read only during the call, and NIXL writes one pointer.
        let status =
            unsafe { (calls.create_agent)(name.as_ptr(), &raw const config, &raw mut handle) };
        check("create_agent", status)?;
        let arenas = Vec::new();
        let files = Vec::new();
        let flying = BTreeMap::new();
        let failed = Vec::new();
        let backend = null_mut();
        let options = None;
        // From here on, dropping `agent` destroys NIXL's agent.
        let mut agent = Self {
            calls,
            handle,
            backend,
            options,
            name,
            arenas,
            files,
            flying,
            failed,
            started: 0,
        };
        let list = parameters(&agent.calls, plugin)?;
        // SAFETY: all arguments are valid, and NIXL writes one pointer.
        let status = unsafe {
            (agent.calls.create_backend)(
                agent.handle,
                kind.as_ptr(),
                list.object,
                &raw mut agent.backend,
            )
        };
        check("create_backend", status)?;
        agent.options = Some(self::options(&agent.calls, agent.backend)?);
        Ok(agent)
    }

    fn options(&self) -> Object {
        self.options.as_ref().map_or(null_mut(), |options| options.object)
    }

    /// Registers an arena for the agent's lifetime, and returns the address of its first byte. Transfers may use its
    /// slots. A peer with this agent's [`metadata`](Self::metadata) can access all bytes of the arena at any time.
    ///
    /// # Errors
    /// [`NixlError`] if the memory has no address, or NIXL refuses.
    pub fn register(&mut self, arena: &Arc<Arena>) -> Result<u64, NixlError> {
        let (address, bytes) = arena.place().ok_or(NixlError::NoAddress)?;
        self.register_stretch(Memory::Dram, Stretch { address, bytes, device: 0 })?;
        self.arenas.push(Arc::clone(arena));
        Ok(address as u64)
    }

    /// Registers the first `bytes` bytes of a file for the agent's lifetime.
    ///
    /// # Errors
    /// [`NixlError`] if NIXL refuses.
    pub fn register_file(&mut self, file: Arc<File>, bytes: u64) -> Result<FileId, NixlError> {
        let device = u64::try_from(file.as_raw_fd()).unwrap_or(u64::MAX);
        let length = usize::try_from(bytes).map_err(|_large| NixlError::NoAddress)?;
        self.register_stretch(Memory::File, Stretch { address: 0, bytes: length, device })?;
        self.files.push((file, bytes));
        Ok(FileId(self.files.len() - 1))
    }

    fn register_stretch(&mut self, memory: Memory, at: Stretch) -> Result<(), NixlError> {
        let list = registered(&self.calls, memory, at)?;
        // SAFETY: all arguments are valid. The registered memory or file lives at least until the agent is destroyed:
        // the caller keeps it in `arenas` or `files`, which are dropped later.
        let status = unsafe { (self.calls.register_mem)(self.handle, list.object, self.options()) };
        check("register_mem", status)
    }

    /// The metadata that a peer needs to access this agent, at most [`METADATA_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// [`NixlError`] if NIXL fails, or the metadata is longer.
    pub fn metadata(&self) -> Result<Vec<u8>, NixlError> {
        let mut data = null_mut();
        let mut bytes = 0;
        // SAFETY: the agent is valid; NIXL writes a pointer and a length.
        let status =
            unsafe { (self.calls.get_local_md)(self.handle, &raw mut data, &raw mut bytes) };
        check("get_local_md", status)?;
        let metadata = if data.is_null() {
            Vec::new()
        } else {
            // SAFETY: NIXL has allocated `bytes` initialised bytes there, for this caller alone.
            unsafe { slice::from_raw_parts(data.cast::<u8>(), bytes) }.to_vec()
        };
        // SAFETY: the buffer was allocated by malloc, or is null, and is no longer used.
        unsafe { (self.calls.free)(data) };
        if (1..=METADATA_BYTES_MAX).contains(&metadata.len()) {
            return Ok(metadata);
        }
        Err(NixlError::Count {
            field: "bytes of metadata (name fewer devices in UCX_NET_DEVICES)",
            count: metadata.len(),
            max: METADATA_BYTES_MAX,
        })
    }

    /// Loads a peer's metadata. NIXL parses it, so the peer must be trusted.
    ///
    /// # Errors
    /// [`NixlError`] if the metadata is too long, or NIXL refuses it.
    pub fn connect(&mut self, metadata: &[u8]) -> Result<Peer, NixlError> {
        if !(1..=METADATA_BYTES_MAX).contains(&metadata.len()) {
            return Err(NixlError::Count {
                field: "bytes of metadata",
                count: metadata.len(),
                max: METADATA_BYTES_MAX,
            });
        }
        let mut name = null_mut();
        // SAFETY: the agent and the bytes are valid; NIXL writes one pointer.
        let status = unsafe {
            (self.calls.load_remote_md)(
                self.handle,
                metadata.as_ptr().cast(),
                metadata.len(),
                &raw mut name,
            )
        };
        check("load_remote_md", status)?;
        // SAFETY: on success it is a zero-terminated text, allocated by malloc for this caller alone.
        let peer = Peer(unsafe { CStr::from_ptr(name) }.to_owned());
        // SAFETY: the text is no longer used.
        unsafe { (self.calls.free)(name.cast()) };
        Ok(peer)
    }

    /// Removes a peer. Running transfers with the peer fail.
    pub fn disconnect(&mut self, peer: &Peer) {
        // SAFETY: the agent is valid, and the name is zero-terminated.
        let status = unsafe { (self.calls.invalidate_remote_md)(self.handle, peer.0.as_ptr()) };
        // NIXL may have removed the peer already, when the connection was lost.
        let _may_be_unknown = status;
    }

    /// Starts a transfer of complete blocks. If the processor does the copying, the call blocks until all bytes are
    /// copied.
    ///
    /// # Errors
    /// [`NixlError`] if there are no pieces or more than [`PIECES_MAX`], something is not registered, or NIXL refuses.
    /// The slots are freed then. If NIXL has already begun, the slots stay reserved, as after a failed transfer.
    pub fn start(
        &mut self,
        direction: Direction,
        far: Far<'_>,
        pieces: Vec<Piece<T>>,
    ) -> Result<TransferId, NixlError> {
        let count = pieces.len();
        if !(1..=PIECES_MAX).contains(&count) {
            return Err(NixlError::Count { field: "pieces", count, max: PIECES_MAX });
        }
        let near = side(&self.calls, Memory::Dram, self.near(&pieces)?.into_iter())?;
        let (kind, device, peer) = match far {
            Far::Peer(peer) => (Memory::Dram, 0, peer.0.as_ptr()),
            Far::File(id) => (Memory::File, self.device(id, &pieces)?, self.name.as_ptr()),
        };
        let stretches = pieces.iter().map(|piece| Stretch {
            // An address of a peer with the same pointer size.
            address: usize::try_from(piece.at).unwrap_or(usize::MAX),
            bytes: piece.slot.block_bytes(),
            device,
        });
        let other = side(&self.calls, kind, stretches)?;
        let mut request = null_mut();
        let operation = direction as c_int;
        // SAFETY: all objects are valid, the name is zero-terminated, and NIXL writes one pointer. NIXL checks that
        // both sides are registered. It accesses no bytes yet.
        let status = unsafe {
            (self.calls.create_xfer_req)(
                self.handle,
                operation,
                near.object,
                other.object,
                peer,
                &raw mut request,
                self.options(),
            )
        };
        check("create_xfer_req", status)?;
        let flying = Flying { request, pieces };
        // SAFETY: the request is valid. NIXL reads or writes the slots from here on. `pieces` has exclusive claims to
        // them. The agent keeps `pieces`, without accessing the bytes, until the transfer has completed or the agent
        // was destroyed. Their arenas stay registered and alive, too.
        let status = unsafe { (self.calls.post_xfer_req)(self.handle, request, null_mut()) };
        if !matches!(status, SUCCESS | IN_PROGRESS) {
            self.failed.push(flying);
            return Err(check("post_xfer_req", status).err().unwrap_or(NixlError::Unknown));
        }
        let id = TransferId(self.started);
        self.started += 1;
        self.flying.insert(id, flying);
        Ok(id)
    }

    /// Returns the local addresses of the pieces' slots. Fails if the arena of a slot is not registered.
    fn near(&self, pieces: &[Piece<T>]) -> Result<Vec<Stretch>, NixlError> {
        let stretch = |piece: &Piece<T>| {
            let slot = &piece.slot;
            if !self.arenas.iter().any(|arena| slot.is_of(arena)) {
                return Err(NixlError::Unregistered("a slot's arena"));
            }
            let address = slot.address().ok_or(NixlError::NoAddress)?;
            Ok(Stretch { address, bytes: slot.block_bytes(), device: 0 })
        };
        pieces.iter().map(stretch).collect()
    }

    /// Returns the file descriptor of a registered file. Fails if a piece is outside the registered range.
    fn device(&self, FileId(id): FileId, pieces: &[Piece<T>]) -> Result<u64, NixlError> {
        let (file, bytes) = self.files.get(id).ok_or(NixlError::Unregistered("the file"))?;
        let lies_inside = |piece: &Piece<T>| {
            let end = piece.at.checked_add(piece.slot.block_bytes() as u64);
            end.is_some_and(|end| end <= *bytes)
        };
        if !pieces.iter().all(lies_inside) {
            return Err(NixlError::Unregistered("a range of the file"));
        }
        Ok(u64::try_from(file.as_raw_fd()).unwrap_or(u64::MAX))
    }

    /// Polls a transfer. A finished transfer is removed by this call; a failed one keeps its slots.
    pub fn poll(&mut self, id: TransferId) -> Progress<T> {
        let Some(flying) = self.flying.get(&id) else {
            return Progress::Failed(NixlError::Unknown);
        };
        // SAFETY: both arguments are valid: a request in `flying` was not released.
        let status = unsafe { (self.calls.get_xfer_status)(self.handle, flying.request) };
        if status == IN_PROGRESS {
            return Progress::Running;
        }
        let Some(mut flying) = self.flying.remove(&id) else {
            return Progress::Failed(NixlError::Unknown);
        };
        if let Err(error) = check("get_xfer_status", status) {
            // Other parts of the request may still be running.
            self.failed.push(flying);
            return Progress::Failed(error);
        }
        self.release(&mut flying);
        Progress::Done(mem::take(&mut flying.pieces))
    }

    /// Whether slots of failed transfers are still reserved. Only dropping the agent frees them.
    #[must_use]
    pub fn keeps_slots(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Releases the request of a transfer in NIXL. A request that NIXL refuses to release is leaked.
    fn release(&self, flying: &mut Flying<T>) {
        let request = mem::replace(&mut flying.request, null_mut());
        // SAFETY: both arguments are valid, and the request is no longer used. A request that can't be released is
        // leaked.
        unsafe {
            if (self.calls.release_xfer_req)(self.handle, request) == SUCCESS {
                (self.calls.destroy_xfer_req)(request);
            }
        }
    }
}

impl<T> Drop for Agent<T> {
    /// Destroys the agent. Its memory is leaked if NIXL may still access it.
    fn drop(&mut self) {
        let mut left: Vec<_> = mem::take(&mut self.flying).into_values().collect();
        left.append(&mut self.failed);
        for flying in &mut left {
            self.release(flying);
        }
        drop(self.options.take());
        // SAFETY: the destroyed objects are no longer used. The backend's handle is null if it was never created; NIXL
        // ignores null.
        let status = unsafe {
            (self.calls.destroy_backend)(self.backend);
            (self.calls.destroy_agent)(self.handle)
        };
        if status != SUCCESS {
            // NIXL's agent may still be active, so the memory that it accesses is leaked instead of freed.
            let left = (left, mem::take(&mut self.arenas), mem::take(&mut self.files));
            let _leaked = ManuallyDrop::new(left);
        }
    }
}
