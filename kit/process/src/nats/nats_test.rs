use super::*;
use nkeys::KeyPair;
use std::fs;

fn read(url: &str, access: NatsAccess) -> Result<NatsServers, String> {
    NatsServers::read(&ServerUrl::from(url.to_owned()), access).map_err(|error| error.to_string())
}

#[test]
fn servers_and_what_signs_on_are_read() {
    let plain = |url| read(url, NatsAccess::default());
    let two = plain("nats://a:4222,tls://user:secret@b:1").expect("two servers");
    let hosts: Vec<_> = two.addresses().iter().map(ServerAddr::host).collect();
    assert_eq!(hosts, ["a", "b"]);
    assert!(two.uses_tls());
    assert!(!format!("{two} {two:?}").contains("secret"));
    let auth = two.sign_on.answer(b"").expect("no file");
    assert_eq!(auth.username.as_deref(), Some("user"));
    assert_eq!(auth.password.as_deref(), Some("secret"));
    let token = plain("nats://token@a:4222").expect("a server");
    assert!(!token.uses_tls());
    let token = token.sign_on.answer(b"").expect("no file");
    assert_eq!((token.token.as_deref(), token.password), (Some("token"), None));
}

#[test]
fn what_is_no_server_is_refused_without_its_secret() {
    for url in ["", "a:4222", "user:secret@a:4222", "http://secret@a", "nats://a,b", "nats://"] {
        let why = read(url, NatsAccess::default()).expect_err(url);
        assert!(why.contains("write nats://host:port") && !why.contains("secret"), "{why}");
    }
}

/// Errors never contain a file's content, and files are read again for each connection.
#[test]
fn files_are_checked_and_read_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    let user = KeyPair::new_user();
    let seed = user.seed().expect("a seed");
    let account = KeyPair::new_account();
    let account = account.seed().expect("a seed");
    let credentials = |jwt: &str, seed: &str| {
        format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\r\n{seed}\r\n------END USER NKEY SEED------\n"
        )
    };
    let by = |option: &str| {
        let path = Some(path.clone());
        match option {
            "nats-credentials" => NatsAccess { credentials: path, ..NatsAccess::default() },
            "nats-tls-ca" => NatsAccess { tls_ca: path, ..NatsAccess::default() },
            other => panic!("{other}"),
        }
    };
    for (option, text) in [
        ("nats-credentials", String::new()),
        ("nats-credentials", credentials("", &seed)),
        ("nats-credentials", credentials("a.b.c", seed.trim_start_matches('S'))),
        ("nats-credentials", credentials("a.b.c", &account)),
        ("nats-credentials", account.clone()),
        ("nats-credentials", format!("{seed}X")),
        ("nats-tls-ca", seed.clone()),
    ] {
        fs::write(&path, &text).expect("a file");
        let why = read("nats://a:1", by(option)).expect_err(&text);
        assert!(why.starts_with(&format!("{option}: ")), "{why}");
        assert!(
            ![seed.trim_start_matches("SU"), account.trim_start_matches("SA")]
                .iter()
                .any(|secret| why.contains(secret)),
            "{why}"
        );
    }
    fs::write(&path, format!("# of the router\n{seed}\n")).expect("a file");
    let servers = read("nats://a:1", by("nats-credentials")).expect("a seed");
    assert!(!format!("{servers:?}").contains(&seed));
    let auth = servers.sign_on.answer(b"nonce").expect("a seed");
    assert_eq!(auth.nkey, Some(user.public_key()));
    user.verify(b"nonce", &auth.signature.expect("a signature")).expect("its own");
    let other = KeyPair::new_user();
    fs::write(&path, other.seed().expect("a seed")).expect("a file");
    assert_eq!(servers.sign_on.answer(b"").expect("a seed").nkey, Some(other.public_key()));
    fs::write(&path, credentials("a.b.c", &seed)).expect("a file");
    let servers = read("nats://a:1", by("nats-credentials")).expect("credentials");
    let auth = servers.sign_on.answer(b"nonce").expect("credentials");
    assert_eq!((auth.jwt.as_deref(), auth.nkey), (Some("a.b.c"), None));
    user.verify(b"nonce", &auth.signature.expect("a signature")).expect("its own");
    let why = read("nats://user:secret@a:1", by("nats-credentials")).expect_err("two of them");
    assert!(why.starts_with("nats-credentials: is set beside a user"), "{why}");
    fs::remove_file(&path).expect("it was there");
    assert!(servers.sign_on.answer(b"nonce").err().expect("no file").contains("cannot be read"));
}

#[test]
fn options_that_belong_together_are_given_together() {
    let path = || Some(PathBuf::from("/nowhere"));
    let some = NatsAccess::default;
    for (access, why) in [
        (NatsAccess { tls_cert: path(), ..some() }, "nats-tls-cert: needs nats-tls-key"),
        (NatsAccess { tls_key: path(), ..some() }, "nats-tls-key: needs nats-tls-cert"),
        (NatsAccess { tls_ca: path(), ..some() }, "nats-tls-ca: /nowhere cannot be read"),
    ] {
        let refused = read("nats://a:1", access).expect_err(why);
        assert!(refused.starts_with(why), "{refused}");
    }
}

#[test]
fn errors_name_the_option_to_look_at() {
    let servers = read("nats://a:1", NatsAccess::default()).expect("a server");
    for (error, expected) in [
        ("authorization violation", ": look at nats-url"),
        ("IO error: invalid peer certificate: UnknownIssuer", ": look at nats-tls-ca"),
        ("received fatal alert: CertificateRequired", ": look at nats-tls-cert and nats-tls-key"),
        ("connection refused", ""),
    ] {
        assert_eq!(servers.explain(error), format!("{error}{expected}"));
    }
}
