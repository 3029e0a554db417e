//! The limit of open files (file descriptors), and its division.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// Assumed limit if the system sets none.
const UNLIMITED: usize = 1 << 20;

/// Raises the limit of open files to the highest that the system allows.
///
/// # Errors
/// If the system rejects the new limit.
pub fn raise_limit() -> io::Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return Ok(());
    }
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).map_err(io::Error::from)
}

/// Maximum number of open files of the process.
#[must_use]
pub fn limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(UNLIMITED).min(UNLIMITED)
}

/// Division of a server's open files. The rest is for the files of the store, for sockets to brokers, agents and
/// siblings, and for the side port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Sockets to engines.
    pub engines: usize,
    /// Connections of clients.
    pub clients: usize,
}

impl Shares {
    /// Divides a limit.
    #[must_use]
    pub const fn of(limit: usize) -> Self {
        Self { engines: limit / 2, clients: limit / 4 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_open_files_is_the_process_own() {
        for limit in [0, 1, 64, 1_024, UNLIMITED] {
            let Shares { engines, clients } = Shares::of(limit);
            assert!(engines + clients <= limit - limit / 4, "{limit}");
        }
        assert_eq!(Shares::of(1_024), Shares { engines: 512, clients: 256 });
    }

    #[test]
    fn the_limit_is_raised_to_the_highest_that_is_allowed() {
        raise_limit().expect("no privilege is needed");
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current, maximum);
        assert!(limit() > 0);
    }
}
