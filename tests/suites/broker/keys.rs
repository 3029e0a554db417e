//! What a NATS server knows its clients by: nkeys, JWTs and certificates, made for one test.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kvasir_process::nats::NatsAccess;
use nkeys::KeyPair;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair as TlsKey};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// A way to sign on: how the server is configured, what it takes, and what it does not.
pub struct Way {
    pub configuration: String,
    pub right: NatsAccess,
    pub wrong: NatsAccess,
    /// What an error names.
    pub option: &'static str,
    /// What nobody may print.
    pub secrets: Vec<String>,
}

fn file(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).expect("a file");
    path
}

pub fn seed(pair: &KeyPair) -> String {
    pair.seed().expect("a seed")
}

/// By the key of a user.
pub fn nkey(folder: &Path) -> Way {
    let [user, stranger] = [KeyPair::new_user(), KeyPair::new_user()];
    let by = |name, pair| NatsAccess {
        credentials: Some(file(folder, name, &format!("{}\n", seed(pair)))),
        ..NatsAccess::default()
    };
    Way {
        configuration: format!("authorization {{ users = [ {{ nkey: {} }} ] }}", user.public_key()),
        right: by("user.nk", &user),
        wrong: by("stranger.nk", &stranger),
        option: "nats-credentials",
        secrets: vec![seed(&user), seed(&stranger)],
    }
}

/// A JWT of NATS: `claims` about `subject`, signed by `issuer`.
fn jwt(issuer: &KeyPair, subject: &KeyPair, claims: &Value) -> String {
    let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = encode(json!({ "typ": "JWT", "alg": "ed25519-nkey" }));
    let body = encode(json!({
        "jti": "test", "iat": 0, "iss": issuer.public_key(), "sub": subject.public_key(),
        "name": "test", "nats": claims,
    }));
    let signed = format!("{header}.{body}");
    let signature = issuer.sign(signed.as_bytes()).expect("a key");
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

pub fn credentials_text(jwt: &str, seed: &str) -> String {
    format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
}

/// By JWTs: of an operator, an account of it, and a user of that.
pub fn credentials(folder: &Path) -> Way {
    let operator = KeyPair::new_operator();
    let account = KeyPair::new_account();
    let by_operator = jwt(&operator, &operator, &json!({ "type": "operator", "version": 2 }));
    let limits = [
        "subs",
        "data",
        "payload",
        "imports",
        "exports",
        "conn",
        "leaf",
        "mem_storage",
        "disk_storage",
        "streams",
        "consumer",
    ];
    let mut limits: Value = limits.into_iter().map(|name| (name, json!(-1))).collect();
    limits["wildcards"] = json!(true);
    let claims = json!({ "limits": limits, "type": "account", "version": 2 });
    let by_account = jwt(&operator, &account, &claims);
    // Without an account of its own the server does not start JetStream.
    let system = KeyPair::new_account();
    let by_system = jwt(&operator, &system, &json!({ "type": "account", "version": 2 }));
    let mut secrets = Vec::new();
    let mut by = |name, issuer: &KeyPair| {
        let user = KeyPair::new_user();
        let unlimited = json!({
            "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2,
        });
        let jwt = jwt(issuer, &user, &unlimited);
        let path = file(folder, name, &credentials_text(&jwt, &seed(&user)));
        secrets.extend([jwt, seed(&user)]);
        NatsAccess { credentials: Some(path), ..NatsAccess::default() }
    };
    let right = by("user.creds", &account);
    let wrong = by("other.creds", &KeyPair::new_account());
    let account = account.public_key();
    let system = system.public_key();
    Way {
        configuration: format!(
            "operator: {by_operator}\nsystem_account: {system}\nresolver: MEMORY\n\
             resolver_preload: {{ {account}: {by_account}, {system}: {by_system} }}"
        ),
        right,
        wrong,
        option: "nats-credentials",
        secrets,
    }
}

/// An authority with a certificate that it signed.
struct Authority {
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
}

impl Authority {
    fn new(folder: &Path, name: &str) -> Self {
        let at = |kind: &str, text: &str| file(folder, &format!("{name}.{kind}.pem"), text);
        let own_key = TlsKey::generate().expect("a key");
        let mut own = CertificateParams::new(Vec::new()).expect("no names");
        own.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        own.distinguished_name.push(DnType::CommonName, format!("authority {name}"));
        let ca = own.self_signed(&own_key).expect("a certificate");
        let issuer = Issuer::new(own, own_key);
        let key = TlsKey::generate().expect("a key");
        let mut leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address");
        leaf.distinguished_name.push(DnType::CommonName, format!("process {name}"));
        let cert = leaf.signed_by(&key, &issuer).expect("a certificate");
        Self {
            ca: at("ca", &ca.pem()),
            cert: at("cert", &cert.pem()),
            key: at("key", &key.serialize_pem()),
        }
    }
}

/// By certificates, of both sides; the wrong ones once on this side and once on that.
pub fn tls(folder: &Path) -> [Way; 2] {
    let known = Authority::new(folder, "known");
    let stranger = Authority::new(folder, "stranger");
    let access = |ca: &Authority, client: &Authority| NatsAccess {
        tls_ca: Some(ca.ca.clone()),
        tls_cert: Some(client.cert.clone()),
        tls_key: Some(client.key.clone()),
        ..NatsAccess::default()
    };
    let Authority { ca, cert, key } = &known;
    let configuration = format!(
        "tls {{ cert_file: \"{}\", key_file: \"{}\", ca_file: \"{}\", verify: true }}",
        cert.display(),
        key.display(),
        ca.display()
    );
    let way = |wrong, option| Way {
        configuration: configuration.clone(),
        right: access(&known, &known),
        wrong,
        option,
        secrets: Vec::new(),
    };
    [
        way(access(&stranger, &known), "nats-tls-ca"),
        way(access(&known, &stranger), "nats-tls-cert and nats-tls-key"),
    ]
}
