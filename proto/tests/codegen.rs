//! `src/gen` matches the `.proto` files. With `KVASIR_REGENERATE=1` this test rewrites it.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a test may read its switch from the environment, and panic"
)]

use prost::Message;
use prost_types::FileDescriptorSet;
use std::path::Path;
use std::{env, fs};
use tonic_prost_build::{Builder, Config};

const FILES: [&str; 9] = [
    "kvasir/v1/types.proto",
    "kvasir/v1/indexer.proto",
    "kvasir/v1/ingest.proto",
    "kvasir/v1/local.proto",
    "kvasir/v1/broker.proto",
    "kvasir/v1/loads.proto",
    "kvasir/v1/router.proto",
    "kvasir/v1/block_manager.proto",
    "kvasir/v1/storage.proto",
];

/// Calls that the generated code does not serve.
const PROMPTS: [&str; 2] = ["FindMatches", "FindMatchesStream"];

#[test]
fn generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = tempfile::tempdir().expect("a temporary folder");
    let descriptors = protox::compile(FILES, [root]).expect("the .proto files compile");
    fs::write(out.path().join("kvasir.v1.bin"), strip_source(&descriptors).encode_to_vec())
        .expect("write descriptors");
    generate(&out.path().join("pb"), descriptors.clone(), |builder| builder.build_server(false));
    generate(&out.path().join("server"), without_prompts(descriptors), |builder| {
        builder.build_client(false).extern_path(".kvasir.v1", "crate::pb")
    });

    let committed = root.join("src/gen");
    for (fresh, name) in [
        ("kvasir.v1.bin", "kvasir.v1.bin"),
        ("pb/kvasir.v1.rs", "kvasir.v1.rs"),
        ("server/kvasir.v1.rs", "kvasir.v1.server.rs"),
    ] {
        let fresh = fs::read(out.path().join(fresh)).expect("generated file");
        if env::var("KVASIR_REGENERATE").is_ok() {
            fs::write(committed.join(name), &fresh).expect("write src/gen");
        }
        let old = fs::read(committed.join(name)).unwrap_or_default();
        assert!(old == fresh, "src/gen/{name} is stale: run scripts/fix");
    }
}

fn generate(out: &Path, set: FileDescriptorSet, change: impl FnOnce(Builder) -> Builder) {
    fs::create_dir(out).expect("a temporary folder");
    let mut config = Config::new();
    // The codec recognises a request by its name.
    config.enable_type_names();
    let builder = tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::codec::BoundedCodec")
        .out_dir(out);
    change(builder).compile_fds_with_config(set, config).expect("code generation");
}

/// The services as the server's generated code has them: the calls with prompts have a codec of
/// their own, which reads and writes no messages.
fn without_prompts(mut set: FileDescriptorSet) -> FileDescriptorSet {
    let services = set.file.iter_mut().flat_map(|file| &mut file.service);
    for service in services.filter(|service| service.name() == "Indexer") {
        let before = service.method.len();
        service.method.retain(|method| !PROMPTS.contains(&method.name()));
        assert_eq!(service.method.len() + PROMPTS.len(), before, "calls are missing");
    }
    set
}

/// Comments belong to the generated rustdoc, not to the binary that reflection serves.
fn strip_source(set: &FileDescriptorSet) -> FileDescriptorSet {
    let mut set = set.clone();
    for file in &mut set.file {
        file.source_code_info = None;
    }
    set
}
