//! Sockets of connections: TCP, or a Unix socket file on this machine.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, ready};
use std::{fs, io, process};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

/// A listening socket.
#[derive(Debug)]
pub enum Listening {
    /// Listens on an address.
    Tcp(TcpListener),
    /// Listens on a socket file.
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
    /// Local address of the socket.
    ///
    /// # Errors
    /// If the system cannot return it, or the socket is a file.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr(),
            Self::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Accepts a connection. Returns the client's address, or `None` for a socket file.
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

/// A listening Unix socket for processes of the same user. The file is removed on drop.
#[derive(Debug)]
pub struct SocketFile {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file: a later file at this path may belong to another process.
    file: (u64, u64),
}

/// Why a socket file cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum SocketFileError {
    /// Another process listens there.
    #[error("{} is in use by another process: give each its own file", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The path is not a socket.
    #[error("{} is not a socket, and is left as it is: name another file", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Error of the system.
    #[error("cannot listen on {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl SocketFile {
    /// Listens on a socket file that only this user may open. Replaces the file of a dead process, which accepts no
    /// connections. Call it within a runtime.
    ///
    /// # Errors
    /// If another process listens there, the path is not a socket, or the system fails.
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
        // Creates the socket in a folder that only this user can enter, so that no other user connects before its mode
        // is set.
        let name = format!(".kvasir-{:016x}", RandomState::new().hash_one(process::id()));
        let folder = path.with_file_name(name);
        fs::DirBuilder::new().mode(0o700).create(&folder).map_err(io)?;
        let fresh = folder.join("s");
        let bound = listen(&fresh, path);
        // Cleans up; the first error is the one that counts.
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

/// Whether a connection error means that no process listens on the socket file.
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
            // If the file is already gone, no cleanup is needed.
            drop(fs::remove_file(&self.path));
        }
    }
}

/// A connection's socket: over TCP, or through a file.
pub type Stream = Either<TcpStream, UnixStream>;

/// Disables Nagle's algorithm, so that small messages are sent immediately. Unix sockets do not need it.
pub(super) fn set_nodelay(stream: &Stream) -> io::Result<()> {
    match stream {
        Either::Left(stream) => stream.set_nodelay(true),
        Either::Right(_) => Ok(()),
    }
}

#[cfg(test)]
#[path = "socket_test.rs"]
mod tests;
