//! `src/gen` is what the `.proto` files say. With `KVASIR_REGENERATE=1` this test rewrites it.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a test may read its switch from the environment, and panic"
)]

use prost::Message;
use std::{env, fs, path::Path};
use tonic_prost_build::Config;

const FILES: [&str; 3] =
    ["kvasir/v1/types.proto", "kvasir/v1/indexer.proto", "kvasir/v1/ingest.proto"];

#[test]
fn generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = tempfile::tempdir().expect("a temporary folder");
    let descriptors = protox::compile(FILES, [root]).expect("the .proto files compile");
    fs::write(out.path().join("kvasir.v1.bin"), strip_source(&descriptors).encode_to_vec())
        .expect("write descriptors");
    let mut config = Config::new();
    // The codec knows a request by its name.
    config.enable_type_names();
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::codec::BoundedCodec")
        .out_dir(out.path())
        .compile_fds_with_config(descriptors, config)
        .expect("code generation");

    let committed = root.join("src/gen");
    for name in ["kvasir.v1.rs", "kvasir.v1.bin"] {
        let fresh = fs::read(out.path().join(name)).expect("generated file");
        if env::var("KVASIR_REGENERATE").is_ok() {
            fs::write(committed.join(name), &fresh).expect("write src/gen");
        }
        let old = fs::read(committed.join(name)).unwrap_or_default();
        assert!(old == fresh, "src/gen/{name} is stale: run .ci/fix");
    }
}

/// Comments belong to the generated rustdoc, not to the binary that reflection serves.
fn strip_source(set: &prost_types::FileDescriptorSet) -> prost_types::FileDescriptorSet {
    let mut set = set.clone();
    for file in &mut set.file {
        file.source_code_info = None;
    }
    set
}
