use super::{CHECK_INTERVAL, Reloaded};
use crate::Problem;
use crate::pem::{Contents, Source};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::time::advance;

/// The lengths of the certificates in two files, and the number of readings.
fn open(folder: &TempDir) -> (Reloaded<Vec<usize>>, [PathBuf; 2]) {
    let paths = ["a.pem", "b.pem"].map(|name| folder.path().join(name));
    let sources =
        paths.iter().map(|path| Source { option: "tls-cert", path: path.clone() }).collect();
    let lengths = |files: &[Contents]| {
        files.iter().map(|file| Ok(file.certificates()?.len())).collect::<Result<Vec<_>, _>>()
    };
    (Reloaded::open(sources, lengths).expect("two files"), paths)
}

fn certificates(count: usize) -> String {
    "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".repeat(count)
}

#[tokio::test(start_paused = true)]
async fn what_is_replaced_is_in_force_at_the_next_look_and_what_is_damaged_is_not() {
    let folder = TempDir::new().expect("a folder");
    for (name, count) in [("a.pem", 1), ("b.pem", 2)] {
        fs::write(folder.path().join(name), certificates(count)).expect("a file");
    }
    let (reloaded, [first, second]) = open(&folder);
    assert_eq!(*reloaded.get(), [1, 2]);
    fs::write(&first, certificates(3)).expect("a file");
    assert_eq!(*reloaded.get(), [1, 2], "not looked at yet");
    advance(CHECK_INTERVAL).await;
    assert_eq!(*reloaded.get(), [3, 2]);

    fs::write(&first, "-----BEGIN CERTIFICATE-----\nAA").expect("a file");
    fs::write(&second, certificates(4)).expect("a file");
    advance(CHECK_INTERVAL).await;
    assert_eq!(*reloaded.get(), [3, 2], "one reading of both files, or none");
    fs::remove_file(&first).expect("a file");
    advance(CHECK_INTERVAL).await;
    assert_eq!(*reloaded.get(), [3, 2]);

    // Like Kubernetes and certbot: a new file is renamed over the old one.
    let fresh = folder.path().join("fresh.pem");
    fs::write(&fresh, certificates(5)).expect("a file");
    fs::rename(&fresh, &first).expect("the same folder");
    advance(CHECK_INTERVAL).await;
    assert_eq!(*reloaded.get(), [5, 4]);
    let before = reloaded.get();
    advance(CHECK_INTERVAL).await;
    assert!(Arc::ptr_eq(&before, &reloaded.get()), "nothing has changed");
}

/// A file of the same length, changed within the same clock tick.
#[tokio::test(start_paused = true)]
async fn a_replacement_of_the_same_length_and_time_is_seen() {
    let folder = TempDir::new().expect("a folder");
    for name in ["a.pem", "b.pem"] {
        fs::write(folder.path().join(name), certificates(1)).expect("a file");
    }
    let (reloaded, [first, _]) = open(&folder);
    let before = reloaded.get();
    let modified = first.metadata().and_then(|at| at.modified()).expect("a time");
    let fresh = folder.path().join("fresh.pem");
    fs::write(&fresh, certificates(1)).expect("a file");
    let file = fs::File::options().write(true).open(&fresh).expect("a file");
    file.set_modified(modified).expect("a time");
    fs::rename(&fresh, &first).expect("the same folder");
    advance(CHECK_INTERVAL).await;
    assert!(!Arc::ptr_eq(&before, &reloaded.get()), "another file");
}

#[test]
fn what_is_no_such_file_is_named_without_its_text() {
    let folder = TempDir::new().expect("a folder");
    let key = folder.path().join("key.pem");
    let secret = "c2VjcmV0IG9mIHRoZSBrZXk=";
    let source = Source { option: "tls-key", path: key.clone() };
    let missing = source.read_file().map(drop).expect_err("no file");
    assert!(missing.to_string().starts_with(&format!("tls-key: {}: ", key.display())), "{missing}");
    for text in [
        String::new(),
        secret.to_owned(),
        format!("-----BEGIN PRIVATE KEY\n{secret}\n"),
        format!("-----BEGIN PRIVATE KEY-----\n{secret}"),
        format!("-----BEGIN PRIVATE KEY-----\n{secret}!\n-----END PRIVATE KEY-----\n"),
        format!(
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\n{secret}\n-----END ENCRYPTED PRIVATE KEY-----\n"
        ),
    ] {
        fs::write(&key, &text).expect("a file");
        let contents = source.read_file().expect("a file");
        let error = contents.private_key().map(drop).expect_err(&text);
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains(secret) && !shown.contains("c2Vj"), "{shown}");
    }
    let folder = Source { option: "tls-ca", path: folder.path().to_owned() };
    let error = folder.read_file().map(drop).expect_err("a folder");
    assert!(matches!(error.problem, Problem::NotAFile), "{error}");
}
