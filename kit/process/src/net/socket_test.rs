use super::*;
use std::os::unix::net::UnixListener as StdListener;

#[tokio::test]
async fn only_the_user_may_connect_and_the_file_goes_with_its_listener() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let file = SocketFile::bind(&path).await.expect("a socket");
    let mode = fs::metadata(&path).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let _client = UnixStream::connect(&path).await.expect("a listener");
    drop(file);
    assert!(!path.exists());
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
}

#[tokio::test]
async fn a_dead_processs_socket_is_replaced_and_a_live_ones_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    // The file that a killed process leaves: the standard library removes no file.
    drop(StdListener::bind(&path).expect("a socket"));
    let first = SocketFile::bind(&path).await.expect("a stale file is replaced");
    let refused = SocketFile::bind(&path).await.expect_err("it is in use");
    assert!(matches!(&refused, SocketFileError::InUse { path: named } if *named == path));
    let _client = UnixStream::connect(&path).await.expect("the first one listens still");
    drop(first);
    // A later process's file stays when an earlier one ends.
    let earlier = SocketFile::bind(&path).await.expect("a socket");
    fs::remove_file(&path).expect("a file");
    let later = SocketFile::bind(&path).await.expect("a socket");
    drop(earlier);
    assert!(path.exists());
    drop(later);
}

#[tokio::test]
async fn what_is_no_socket_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    fs::write(&path, "kept").expect("a file");
    let refused = SocketFile::bind(&path).await.expect_err("it is a file");
    assert!(matches!(refused, SocketFileError::Foreign { .. }), "{refused}");
    assert_eq!(fs::read_to_string(&path).expect("a file"), "kept");
    let missing = folder.path().join("no/socket");
    let refused = SocketFile::bind(&missing).await.expect_err("there is no folder");
    assert!(matches!(refused, SocketFileError::Io { .. }), "{refused}");
}
