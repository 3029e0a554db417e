//! Values built from files, and rebuilt when one of the files changes.

use crate::TlsError;
use crate::pem::{Contents, Source};
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Minimum time between two checks of the files. A check runs at the next use after this time.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Builds the value from the contents of the files, in the order of the sources.
type Make<T> = dyn Fn(&[Contents]) -> Result<T, TlsError> + Send + Sync;

/// A value built from files. Each value comes from one reading of all files.
pub struct Reloaded<T> {
    sources: Vec<Source>,
    make: Box<Make<T>>,
    state: Mutex<State<T>>,
}

struct State<T> {
    current: Arc<T>,
    /// Stamps of the files from which `current` was built.
    stamps: Vec<Option<Stamp>>,
    looked: Instant,
    /// Why the present files are not in force.
    refusal: Option<String>,
}

/// Detects a file that was written or replaced. The time of the last change alone is too coarse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// Returns the stamp of a file, or `None` if the file is missing.
    fn of_file(path: &Path) -> Option<Self> {
        let at = path.metadata().ok()?;
        Some(Self {
            device: at.dev(),
            inode: at.ino(),
            length: at.size(),
            modified: (at.mtime(), at.mtime_nsec()),
            changed: (at.ctime(), at.ctime_nsec()),
        })
    }
}

impl<T: 'static> Reloaded<T> {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// If a file is invalid.
    pub fn open(
        sources: Vec<Source>,
        make: impl Fn(&[Contents]) -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Result<Self, TlsError> {
        // Before the files are read, so that the next check detects changes made meanwhile.
        let stamps = stamps(&sources);
        let current = Arc::new(read_all(&sources, &make)?);
        let state = State { current, stamps, looked: Instant::now(), refusal: None };
        Ok(Self { sources, make: Box::new(make), state: Mutex::new(state) })
    }

    /// Returns the current value. Checks the files for changes first, if the last check is [`CHECK_INTERVAL`] ago.
    #[must_use]
    pub fn get(&self) -> Arc<T> {
        // Code under this lock does not panic.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now.duration_since(state.looked) >= CHECK_INTERVAL {
            state.looked = now;
            self.reload_if_changed(&mut state);
        }
        Arc::clone(&state.current)
    }

    /// Reads the files again if any has changed. Invalid files are logged once, and the previous content stays.
    fn reload_if_changed(&self, state: &mut State<T>) {
        let stamps = stamps(&self.sources);
        if stamps == state.stamps {
            return;
        }
        match read_all(&self.sources, &*self.make) {
            Ok(fresh) => {
                state.current = Arc::new(fresh);
                state.stamps = stamps;
                state.refusal = None;
                tracing::info!(files = self.names(), "files have changed: the new content is used");
            }
            // Each check retries: the files may be half replaced.
            Err(error) => {
                let why = Some(error.to_string());
                if state.refusal != why {
                    tracing::error!(%error, "files have changed and cannot be used: the previous content stays in use");
                    state.refusal = why;
                }
            }
        }
    }

    fn names(&self) -> String {
        let names: Vec<_> = self.sources.iter().map(|at| at.path.display().to_string()).collect();
        names.join(", ")
    }
}

impl<T> fmt::Debug for Reloaded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloaded").field("sources", &self.sources).finish_non_exhaustive()
    }
}

fn stamps(sources: &[Source]) -> Vec<Option<Stamp>> {
    sources.iter().map(|source| Stamp::of_file(&source.path)).collect()
}

fn read_all<T: 'static>(sources: &[Source], make: &Make<T>) -> Result<T, TlsError> {
    let contents = sources.iter().map(Source::read_file).collect::<Result<Vec<_>, _>>()?;
    make(&contents)
}

#[cfg(test)]
#[path = "reload_test.rs"]
mod tests;
