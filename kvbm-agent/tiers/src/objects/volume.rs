//! Volumes: object stores provided by the operator. Kvasir mounts nothing.

use super::format::{HEADER_BYTES, decode, encode};
use crate::block::{Fingerprint, Sealed};
use crate::checksum::Checksum;
use crate::error::TransferError;
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload, parse_url_opts,
};
use parking_lot::Mutex;
use rustls::crypto::ring;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use url::Url;

/// Maximum headers read concurrently.
const HEADERS_AT_A_TIME: usize = 16;

/// Maximum volumes of a process.
pub const VOLUMES_MAX: usize = 64;

/// Description of a volume to register.
#[derive(Debug, Clone)]
pub struct VolumeDescriptor {
    /// Name of the volume in this process.
    pub name: String,
    /// Address of the store: `s3://bucket/prefix`, `file:///folder`, `memory:///`.
    pub url: String,
    /// Options of the store, with names of `object_store`: `aws_endpoint`, `aws_access_key_id`.
    pub options: Vec<(String, String)>,
    /// Meaning of the blocks' bytes. Blocks with other fingerprints have different keys.
    pub fingerprint: Fingerprint,
    /// Maximum bytes of a block.
    pub block_bytes: usize,
}

/// Why a volume can't be registered or found.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// A volume with this name is already registered.
    #[error("volume {0} is registered already")]
    Registered(String),
    /// No volume with this name is registered.
    #[error("volume {0} is not registered")]
    Unknown(String),
    /// Too many volumes are registered.
    #[error("{VOLUMES_MAX} volumes are registered already")]
    TooMany,
    /// The address or an option is invalid.
    #[error("volume {name}: {reason}")]
    Address {
        /// Name of the volume.
        name: String,
        /// Why the address or option is invalid.
        reason: String,
    },
}

/// All registered volumes.
#[derive(Debug, Default)]
pub struct Volumes(Mutex<BTreeMap<String, Arc<Volume>>>);

impl Volumes {
    /// Creates an empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a volume. Sends no requests to it.
    ///
    /// # Errors
    /// If the name is taken, or the address is invalid.
    pub fn register_volume(
        &self,
        descriptor: &VolumeDescriptor,
    ) -> Result<Arc<Volume>, VolumeError> {
        let VolumeDescriptor { name, url, options, .. } = descriptor;
        let reason = |error: &dyn Display| {
            // A URL may contain a password, and some errors repeat the URL.
            let reason = error.to_string().replace(&**url, "URL");
            VolumeError::Address { name: name.clone(), reason }
        };
        let parsed = Url::parse(url).map_err(|error| reason(&error))?;
        ensure_crypto();
        let options = options.iter().map(|(key, value)| (key, value.clone()));
        let (store, prefix) = parse_url_opts(&parsed, options).map_err(|error| reason(&error))?;
        self.register_store(descriptor, Arc::from(store), prefix)
    }

    /// Registers a volume whose store the caller has created. The descriptor's address is ignored.
    ///
    /// # Errors
    /// If the name is taken.
    pub fn register_store(
        &self,
        descriptor: &VolumeDescriptor,
        store: Arc<dyn ObjectStore>,
        prefix: Path,
    ) -> Result<Arc<Volume>, VolumeError> {
        let mut volumes = self.0.lock();
        if volumes.contains_key(&descriptor.name) {
            return Err(VolumeError::Registered(descriptor.name.clone()));
        }
        if volumes.len() >= VOLUMES_MAX {
            return Err(VolumeError::TooMany);
        }
        let volume = Arc::new(Volume {
            name: descriptor.name.clone(),
            store,
            folder: prefix.join(descriptor.fingerprint.to_string()),
            fingerprint: descriptor.fingerprint,
            block_bytes: descriptor.block_bytes,
            is_gone: AtomicBool::new(false),
        });
        volumes.insert(descriptor.name.clone(), Arc::clone(&volume));
        Ok(volume)
    }

    /// Unregisters a volume. Later calls fail; running calls continue.
    ///
    /// # Errors
    /// If no volume has this name.
    pub fn unregister_volume(&self, name: &str) -> Result<(), VolumeError> {
        let volume = self.0.lock().remove(name);
        let volume = volume.ok_or_else(|| VolumeError::Unknown(name.to_owned()))?;
        volume.is_gone.store(true, Ordering::Release);
        Ok(())
    }

    /// The volume with this name.
    #[must_use]
    pub fn volume(&self, name: &str) -> Option<Arc<Volume>> {
        self.0.lock().get(name).cloned()
    }
}

/// Installs Kvasir's crypto provider as the process's default, unless there is one already.
fn ensure_crypto() {
    // A provider that was installed earlier is equally good.
    drop(ring::default_provider().install_default());
}

/// A registered volume. Keys are `prefix/fingerprint/sequence hash`.
#[derive(Debug)]
pub struct Volume {
    name: String,
    store: Arc<dyn ObjectStore>,
    folder: Path,
    fingerprint: Fingerprint,
    block_bytes: usize,
    is_gone: AtomicBool,
}

/// An object whose header was read. Its bytes arrive in pieces and are not verified.
pub(super) struct Found {
    pub(super) block: Sealed,
    /// Bytes that arrived together with the header.
    pub(super) first: Bytes,
    pub(super) rest: stream::BoxStream<'static, object_store::Result<Bytes>>,
}

/// The result of storing a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The block was stored.
    Created,
    /// A block with this name already existed and was kept.
    Existing(Sealed),
}

impl Volume {
    /// Name of the volume.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Maximum bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    fn path(&self, sequence_hash: u64) -> Path {
        self.folder.clone().join(format!("{sequence_hash:016x}"))
    }

    fn check(&self) -> Result<(), TransferError> {
        if self.is_gone.load(Ordering::Acquire) {
            return Err(TransferError::Unregistered(self.name.clone()));
        }
        Ok(())
    }

    /// Stores a block whose checksum the caller has computed. Returns the existing block if the volume has a valid one
    /// with this name; replaces an invalid one.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn put(&self, block: &Sealed, bytes: Bytes) -> Result<Put, TransferError> {
        self.check()?;
        let path = self.path(block.identity.sequence_hash);
        let header = Bytes::from(encode(block, self.fingerprint));
        let body = || PutPayload::from_iter([header.clone(), bytes.clone()]);
        let create = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.store.put_opts(&path, body(), create).await {
            Ok(_) => return Ok(Put::Created),
            Err(Error::AlreadyExists { .. }) => {}
            Err(error) => return Err(failed(&error)),
        }
        match self.find(block.identity.sequence_hash).await {
            Ok(existing) => Ok(Put::Existing(existing)),
            Err(error) if is_no_block(&error) => {
                self.store.put(&path, body()).await.map_err(|error| failed(&error))?;
                Ok(Put::Created)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads the header of the block with this name.
    ///
    /// # Errors
    /// [`TransferError::Missing`] if there is no such block.
    pub async fn find(&self, sequence_hash: u64) -> Result<Sealed, TransferError> {
        self.check()?;
        let header = 0..u64::try_from(HEADER_BYTES).unwrap_or_default();
        let options =
            GetOptions { range: Some(GetRange::Bounded(header)), ..GetOptions::default() };
        let path = self.path(sequence_hash);
        let result = match self.store.get_opts(&path, options).await {
            Ok(result) => result,
            Err(error) => return Err(self.unread(&path, &error).await),
        };
        let size = result.meta.size;
        let header = result.bytes().await.map_err(|error| failed(&error))?;
        self.read_header(&header, sequence_hash, size)
    }

    /// Returns why a header cannot be read. For an object that is too short, stores report another error: then returns
    /// `Short`.
    async fn unread(&self, path: &Path, error: &Error) -> TransferError {
        let error = failed(error);
        if matches!(error, TransferError::Missing) {
            return error;
        }
        match self.store.head(path).await.map(|object| usize::try_from(object.size)) {
            Ok(Ok(done)) if done < HEADER_BYTES => {
                TransferError::Short { done, wanted: HEADER_BYTES }
            }
            _ => error,
        }
    }

    /// Reads and verifies a block.
    ///
    /// # Errors
    /// [`TransferError::Missing`] if there is no such block, [`TransferError::Corrupt`] if its bytes are wrong.
    pub async fn get(&self, sequence_hash: u64) -> Result<(Sealed, Bytes), TransferError> {
        let Found { block, first, mut rest } = self.open_object(sequence_hash).await?;
        // The size was checked against the maximum.
        let mut bytes = Vec::with_capacity(block.bytes);
        bytes.extend_from_slice(&first);
        while let Some(piece) = rest.next().await {
            bytes.extend_from_slice(&piece.map_err(|error| failed(&error))?);
        }
        let expected = block.checksum;
        let found = Checksum::of(sequence_hash, &bytes);
        if found != expected {
            return Err(TransferError::Corrupt { expected, found });
        }
        Ok((block, bytes.into()))
    }

    /// Opens the object of a block and reads its header.
    pub(super) async fn open_object(&self, sequence_hash: u64) -> Result<Found, TransferError> {
        self.check()?;
        let path = self.path(sequence_hash);
        let result: GetResult = self.store.get(&path).await.map_err(|error| failed(&error))?;
        let size = result.meta.size;
        self.check_size(size)?;
        let mut rest = result.into_stream();
        let mut first = Vec::new();
        while first.len() < HEADER_BYTES {
            let Some(piece) = rest.next().await else { break };
            first.extend_from_slice(&piece.map_err(|error| failed(&error))?);
        }
        let mut first = Bytes::from(first);
        let header = first.split_to(HEADER_BYTES.min(first.len()));
        let block = self.read_header(&header, sequence_hash, size)?;
        Ok(Found { block, first, rest })
    }

    /// Fails if an object is larger than the largest block with its header.
    fn check_size(&self, size: u64) -> Result<(), TransferError> {
        let limit = HEADER_BYTES + self.block_bytes;
        if u64::try_from(limit).is_ok_and(|limit| size > limit) {
            return Err(TransferError::Foreign(format!(
                "the object has {size} bytes, and blocks of this volume at most {limit}"
            )));
        }
        Ok(())
    }

    /// Decodes an object's header. Fails if the header is of another block, or if the object's size differs from the
    /// stated one.
    fn read_header(
        &self,
        header: &[u8],
        sequence_hash: u64,
        size: u64,
    ) -> Result<Sealed, TransferError> {
        let block = decode(header, self.fingerprint, self.block_bytes)?;
        let named = block.identity.sequence_hash;
        if named != sequence_hash {
            return Err(TransferError::Foreign(format!("the object has block {named:016x}")));
        }
        let wanted = HEADER_BYTES + block.bytes;
        match usize::try_from(size) {
            Ok(size) if size == wanted => Ok(block),
            Ok(done) => Err(TransferError::Short { done, wanted }),
            Err(_) => Err(TransferError::Foreign("the object is too large".to_owned())),
        }
    }

    /// Deletes a block. Succeeds if the block does not exist.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn delete(&self, sequence_hash: u64) -> Result<(), TransferError> {
        self.check()?;
        match self.store.delete(&self.path(sequence_hash)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Reads the headers of the named blocks, in order of arrival; used to fill a manager's volume tier. Skips damaged
    /// and missing objects.
    pub fn blocks(
        self: &Arc<Self>,
        names: Vec<u64>,
    ) -> impl Stream<Item = Result<Sealed, TransferError>> + Send + 'static {
        let volume = Arc::clone(self);
        let find = move |name| {
            let volume = Arc::clone(&volume);
            async move { volume.find(name).await }
        };
        let found = stream::iter(names).map(find).buffer_unordered(HEADERS_AT_A_TIME);
        found.filter(|found| ready(!found.as_ref().is_err_and(is_no_block)))
    }

    /// Lists the names of all blocks, in order of arrival. Skips objects with other names.
    pub fn list(&self) -> impl Stream<Item = Result<u64, TransferError>> + Send + 'static {
        let objects = self.store.list(Some(&self.folder));
        objects.filter_map(|object| async {
            match object {
                Ok(object) => name(&object.location).map(Ok),
                Err(error) => Some(Err(failed(&error))),
            }
        })
    }
}

/// Whether an error means that the block does not exist: the object is damaged, or was deleted meanwhile.
fn is_no_block(error: &TransferError) -> bool {
    matches!(
        error,
        TransferError::Corrupt { .. }
            | TransferError::Foreign(_)
            | TransferError::Short { .. }
            | TransferError::Missing
    )
}

fn name(path: &Path) -> Option<u64> {
    let name = path.filename().filter(|name| name.len() == 16)?;
    u64::from_str_radix(name, 16).ok()
}

pub(super) fn failed(error: &Error) -> TransferError {
    if matches!(error, Error::NotFound { .. }) {
        TransferError::Missing
    } else {
        TransferError::Io(error.to_string())
    }
}
