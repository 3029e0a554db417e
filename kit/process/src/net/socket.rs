//! What connections come by: TCP, or a socket file of this machine.

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    io,
    net::SocketAddr,
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process,
    task::{Context, Poll, ready},
};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

/// What listens.
#[derive(Debug)]
pub enum Listening {
    /// An address.
    Tcp(TcpListener),
    /// A socket file.
    Unix(SocketFile),
}

impl From<TcpListener> for Listening {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<SocketFile> for Listening {
    fn from(file: SocketFile) -> Self {
        Self::Unix(file)
    }
}

impl Listening {
    /// Its address.
    ///
    /// # Errors
    /// If the system does not know it, or it is a file.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr(),
            Self::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    pub(super) fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(Stream, Option<SocketAddr>)>> {
        Poll::Ready(match self {
            Self::Tcp(listener) => {
                let (stream, client) = ready!(listener.poll_accept(context))?;
                Ok((Either::Left(stream), Some(client)))
            }
            Self::Unix(file) => {
                let (stream, _unnamed) = ready!(file.listener.poll_accept(context))?;
                Ok((Either::Right(stream), None))
            }
        })
    }
}

/// A socket file on which this process listens, for processes of its own user. It is removed when this is dropped.
#[derive(Debug)]
pub struct SocketFile {
    listener: UnixListener,
    path: PathBuf,
    /// Device and number of the file: what lies there later may be another process's.
    file: (u64, u64),
}

/// A socket file cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SocketFileError {
    /// A process listens there.
    #[error("{} is in use by another process: give each its own file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It is no socket.
    #[error("{} is not a socket, and is left as it is: name another file", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot listen on {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl SocketFile {
    /// Listens on a file that only this user may open. A file that a dead process left takes no connections, and is
    /// replaced. Call it within a runtime.
    ///
    /// # Errors
    /// If a process listens there, something else lies there, or the system refuses.
    pub async fn bind(path: &Path) -> Result<Self, SocketFileError> {
        let io = |error| SocketFileError::Io { path: path.to_owned(), error };
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io(error)),
            Ok(there) if !there.file_type().is_socket() => {
                return Err(SocketFileError::Foreign { path: path.to_owned() });
            }
            Ok(_) => match UnixStream::connect(path).await {
                Ok(_) => return Err(SocketFileError::InUse { path: path.to_owned() }),
                Err(error) if is_dead(&error) => {}
                Err(error) => return Err(io(error)),
            },
        }
        // Nobody may connect before its mode is right, so it begins in a folder that only this user may enter.
        let name = format!(".kvasir-{:016x}", RandomState::new().hash_one(process::id()));
        let folder = path.with_file_name(name);
        fs::DirBuilder::new().mode(0o700).create(&folder).map_err(io)?;
        let fresh = folder.join("s");
        let bound = listen(&fresh, path);
        // What is left of it goes; the first error is what counts.
        drop(fs::remove_file(&fresh));
        drop(fs::remove_dir(&folder));
        let (listener, file) = bound.map_err(io)?;
        Ok(Self { listener, path: path.to_owned(), file })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether no process listens on a socket file.
fn is_dead(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

fn listen(fresh: &Path, path: &Path) -> io::Result<(UnixListener, (u64, u64))> {
    let listener = UnixListener::bind(fresh)?;
    fs::set_permissions(fresh, fs::Permissions::from_mode(0o600))?;
    fs::rename(fresh, path)?;
    Ok((listener, file_of(path)?))
}

fn file_of(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if file_of(&self.path).is_ok_and(|file| file == self.file) {
            // If it is gone meanwhile, nothing is left to do.
            drop(fs::remove_file(&self.path));
        }
    }
}

/// A connection's socket: over TCP, or through a file.
pub type Stream = Either<TcpStream, UnixStream>;

/// Sends small messages at once; through a file they are anyway.
pub(super) fn set_nodelay(stream: &Stream) -> io::Result<()> {
    match stream {
        Either::Left(stream) => stream.set_nodelay(true),
        Either::Right(_) => Ok(()),
    }
}

#[cfg(test)]
#[path = "socket_test.rs"]
mod tests;
