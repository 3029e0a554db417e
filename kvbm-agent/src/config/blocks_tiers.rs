//! Settings of the block manager's tiers: host memory, disk and volume.

use super::store_option::StoreOption;
use crate::blocks::{ArenaBacking, DiskFile, VolumePlace};
use kvasir_process::config::ConfigError;
use kvasir_process::options::positive;
use kvasir_process::text::{ByteCount, KeyValues, ServerUrl, Setting, Settings, Span, Unset};
use kvasir_proto::convert::check_location;
use kvasir_proto::limits::STORAGE_LOCATION_BYTES_MAX;
use serde::{Serialize, Serializer};
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// Maximum number of threads of one storage.
const THREADS_MAX: usize = 256;
/// Prefix of a volume's location.
const VOLUME: &str = "volume:";

/// Host memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSettings {
    /// Size of the memory.
    pub bytes: Unset<ByteCount>,
    /// Kind of the memory.
    pub arena: ArenaSpec,
    /// Threads of each storage.
    pub threads: usize,
}

impl Default for HostSettings {
    fn default() -> Self {
        Self { bytes: Unset(None), arena: ArenaSpec(ArenaBacking::Memfd), threads: 4 }
    }
}

impl Settings for HostSettings {
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![("bytes", &mut self.bytes), ("arena", &mut self.arena), ("threads", &mut self.threads)]
    }
}

impl HostSettings {
    /// Checks the number of threads.
    pub(super) fn threads(&self) -> Result<usize, ConfigError> {
        let threads = self.threads;
        if (1..=THREADS_MAX).contains(&threads) {
            return Ok(threads);
        }
        let why = format!("is {threads}, must be 1 to {THREADS_MAX}");
        Err(ConfigError::invalid("blocks-host threads", why))
    }
}

/// Backing of the engines' memory, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArenaSpec(pub ArenaBacking);

impl fmt::Display for ArenaSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ArenaBacking::Private => f.write_str("private"),
            ArenaBacking::Locked => f.write_str("locked"),
            ArenaBacking::Memfd => f.write_str("memfd"),
            ArenaBacking::File(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for ArenaSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(match text {
            "private" => ArenaBacking::Private,
            "locked" => ArenaBacking::Locked,
            "memfd" => ArenaBacking::Memfd,
            path if path.starts_with('/') => ArenaBacking::File(path.into()),
            other => {
                return Err(format!("{other:?} is not memfd, private, locked or a path from /"));
            }
        }))
    }
}

/// A local disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskSettings {
    /// Path of the file.
    pub file: Unset<String>,
    /// Size of the file.
    pub bytes: Unset<ByteCount>,
    /// Whether to bypass the page cache.
    pub direct: bool,
    /// Use count from which a block is copied: doubled by each save and lookup, and falling with time.
    pub offers_min: u64,
}

impl Default for DiskSettings {
    fn default() -> Self {
        Self { file: Unset(None), bytes: Unset(None), direct: true, offers_min: 1 }
    }
}

impl Settings for DiskSettings {
    const PLAIN_KEY: Option<&'static str> = Some("file");

    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![
            ("file", &mut self.file),
            ("bytes", &mut self.bytes),
            ("direct", &mut self.direct),
            ("offers-min", &mut self.offers_min),
        ]
    }
}

impl DiskSettings {
    /// Whether the tier is configured, completely or not.
    pub(super) const fn is_set(&self) -> bool {
        self.file.0.is_some() || self.bytes.0.is_some()
    }

    /// Returns the file and its size, if there is a disk tier.
    pub(super) fn check(&self) -> Result<Option<(DiskFile, ByteCount)>, ConfigError> {
        let file = ("blocks-disk file", "a place", self.file.0.clone());
        let bytes = ("blocks-disk bytes", "a size", self.bytes.0);
        let is_direct = self.direct;
        let both = pair(file, bytes)?;
        Ok(both.map(|(path, bytes)| (DiskFile { path: path.into(), is_direct }, bytes)))
    }
}

/// An object store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VolumeSettings {
    /// URL of the store. It may contain a password.
    pub url: Unset<ServerUrl>,
    /// Maximum size of the blocks that this agent tracks.
    pub bytes: Unset<ByteCount>,
    /// Name of the volume for all agents that share it.
    pub name: Unset<String>,
    /// Use count from which a block is copied: doubled by each copy and lookup, and falling with time.
    pub offers_min: u64,
    /// Maximum time of one transfer.
    pub timeout: Span,
    /// Time between two searches for blocks of other agents; 0 for one search, at start.
    pub search_interval: Span,
}

impl Default for VolumeSettings {
    fn default() -> Self {
        Self {
            url: Unset(None),
            bytes: Unset(None),
            name: Unset(None),
            offers_min: 1,
            timeout: Span::seconds(30),
            search_interval: Span::seconds(600),
        }
    }
}

impl Settings for VolumeSettings {
    const PLAIN_KEY: Option<&'static str> = Some("url");

    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
        vec![
            ("url", &mut self.url),
            ("bytes", &mut self.bytes),
            ("name", &mut self.name),
            ("offers-min", &mut self.offers_min),
            ("timeout", &mut self.timeout),
            ("search-interval", &mut self.search_interval),
        ]
    }
}

impl VolumeSettings {
    /// The volume and the size of its blocks; `None` without a volume tier.
    pub(super) fn check(
        &self,
        options: &[StoreOption],
    ) -> Result<Option<(VolumePlace, ByteCount)>, ConfigError> {
        let name = self.name()?;
        let url = ("blocks-volume url", "a place", self.url.0.clone());
        let bytes = ("blocks-volume bytes", "a size", self.bytes.0);
        let Some((url, bytes)) = pair(url, bytes)? else { return Ok(None) };
        let option = |option: &StoreOption| {
            let why = "is no key=value";
            let (key, value) =
                option.expose().ok_or_else(|| ConfigError::invalid("blocks-volume-option", why))?;
            Ok::<_, ConfigError>((key.to_owned(), value.to_owned()))
        };
        let options = options.iter().map(option).collect::<Result<_, _>>()?;
        let timeout = positive("blocks-volume timeout", self.timeout)?;
        let search_interval = Some(self.search_interval.0).filter(|at| !at.is_zero());
        Ok(Some((VolumePlace { url, name, options, timeout, search_interval }, bytes)))
    }

    /// Returns the name of the volume, or `None` if it is unset. The name becomes a part of a storage location, so its
    /// length and characters are limited.
    fn name(&self) -> Result<Option<String>, ConfigError> {
        const FIELD: &str = "blocks-volume name";
        let Some(name) = self.name.0.clone() else { return Ok(None) };
        if self.url.0.is_none() {
            return Err(ConfigError::invalid(FIELD, "needs url beside it"));
        }
        if name.is_empty() || check_location(FIELD, &format!("{VOLUME}{name}")).is_err() {
            let limit = STORAGE_LOCATION_BYTES_MAX - VOLUME.len();
            let why = format!("must have 1 to {limit} bytes, and no character that is not shown");
            return Err(ConfigError::invalid(FIELD, why));
        }
        Ok(Some(name))
    }
}

/// The option `blocks-volume`. Reading it never fails, because errors of the command line repeat the text, and the URL
/// may contain a password. [`VolumeSpec::settings`] returns the error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSpec(Result<KeyValues<VolumeSettings>, String>);

impl Default for VolumeSpec {
    fn default() -> Self {
        Self(Ok(KeyValues::default()))
    }
}

impl VolumeSpec {
    /// The settings.
    ///
    /// # Errors
    /// If the text of the option could not be read.
    pub(super) fn settings(&self) -> Result<&VolumeSettings, ConfigError> {
        let settings = self.0.as_ref().map(|KeyValues(settings)| settings);
        settings.map_err(|why| ConfigError::invalid("blocks-volume", why))
    }

    /// Whether the tier is configured, completely or not.
    pub(super) fn is_set(&self) -> bool {
        let is_set =
            |KeyValues(at): &KeyValues<VolumeSettings>| at.url.0.is_some() || at.bytes.0.is_some();
        self.0.as_ref().map_or(true, is_set)
    }
}

impl FromStr for VolumeSpec {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let may_be_secret = text.contains('@');
        Ok(Self(text.parse().map_err(|why| {
            let hidden = "must be url=URL,bytes=BYTES, and further keys after commas";
            if may_be_secret { hidden.to_owned() } else { why }
        })))
    }
}

impl fmt::Display for VolumeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |settings| settings.fmt(f))
    }
}

impl Serialize for VolumeSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Combines two settings that require each other. Returns `None` if both are unset, and fails if only one is set. Each
/// setting has a name, a word for its content, and a value.
fn pair<A, B>(
    (first, a_place, a): (&'static str, &str, Option<A>),
    (second, a_size, b): (&'static str, &str, Option<B>),
) -> Result<Option<(A, B)>, ConfigError> {
    match (a, b) {
        (None, None) => Ok(None),
        (Some(a), Some(b)) => Ok(Some((a, b))),
        (Some(_), None) => {
            Err(ConfigError::invalid(second, format!("is required with {first}: state {a_size}")))
        }
        (None, Some(_)) => {
            Err(ConfigError::invalid(first, format!("is required with {second}: state {a_place}")))
        }
    }
}
