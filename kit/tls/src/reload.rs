//! What is made of files, made again when one of them changes.

use crate::{
    TlsError,
    pem::{Contents, Source},
};
use std::{
    fmt,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// How often files are looked at, at most: at the next use after so long.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Builds the value from the contents of the files, in the order of the sources.
type Make<T> = dyn Fn(&[Contents]) -> Result<T, TlsError> + Send + Sync;

/// A value that is made of files. Each value is made of one reading of all files.
pub struct Reloaded<T> {
    sources: Vec<Source>,
    make: Box<Make<T>>,
    state: Mutex<State<T>>,
}

struct State<T> {
    current: Arc<T>,
    /// Of the files that `current` was made of.
    stamps: Vec<Option<Stamp>>,
    looked: Instant,
    /// Why the files that are there now are not in force.
    refusal: Option<String>,
}

/// What changes with a file, if it is written to or replaced. The time of the last change alone has too coarse a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// None if there is no such file.
    fn of(path: &Path) -> Option<Self> {
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
    /// If one of them cannot be used.
    pub fn open(
        sources: Vec<Source>,
        make: impl Fn(&[Contents]) -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Result<Self, TlsError> {
        // Before the files are read: what changes meanwhile is seen at the next look.
        let stamps = stamps(&sources);
        let current = Arc::new(read(&sources, &make)?);
        let state = State { current, stamps, looked: Instant::now(), refusal: None };
        Ok(Self { sources, make: Box::new(make), state: Mutex::new(state) })
    }

    /// The value of the files as they were at the last look.
    #[must_use]
    pub fn get(&self) -> Arc<T> {
        // Nothing panics while it holds the lock.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now.duration_since(state.looked) >= CHECK_INTERVAL {
            state.looked = now;
            self.look(&mut state);
        }
        Arc::clone(&state.current)
    }

    fn look(&self, state: &mut State<T>) {
        let stamps = stamps(&self.sources);
        if stamps == state.stamps {
            return;
        }
        match read(&self.sources, &*self.make) {
            Ok(fresh) => {
                state.current = Arc::new(fresh);
                state.stamps = stamps;
                state.refusal = None;
                tracing::info!(files = self.names(), "files have changed: they are in force");
            }
            // It is tried again at each look: the files may be half replaced.
            Err(error) => {
                let why = Some(error.to_string());
                if state.refusal != why {
                    tracing::error!(%error, "files have changed and cannot be used: those before stay in force");
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
    sources.iter().map(|source| Stamp::of(&source.path)).collect()
}

fn read<T: 'static>(sources: &[Source], make: &Make<T>) -> Result<T, TlsError> {
    let contents = sources.iter().map(Source::read).collect::<Result<Vec<_>, _>>()?;
    make(&contents)
}

#[cfg(test)]
#[path = "reload_test.rs"]
mod tests;
