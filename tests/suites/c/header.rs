//! `include/kvasir.h` is what the code says. With `KVASIR_REGENERATE` this test rewrites it.

use crate::build;
use cbindgen::{Builder, Config, DocumentationStyle, ExportConfig, Language};
use std::collections::HashMap;
use std::path::Path;
use std::{env, fs};

const HEAD: &str = "\
/* Kvasir for engines in C and C++: tells the agent beside the engine, or an index, what the engine holds.
 *
 * All functions may be called from any thread. All return a kvasir_code, and never let anything else of
 * the library out; where that is not KVASIR_OK, kvasir_last_error has a text for people. Texts are UTF-8
 * and end with a 0 byte. Nothing that a caller passes in is retained: it may be freed after the call. Times are
 * in milliseconds, blocks are counted, tokens never leave the process.
 *
 * Made of the code: do not edit it. `scripts/fix` makes it anew. */";

/// Our names, and the header's.
const NAMES: [(&str, &str); 6] = [
    ("Code", "kvasir_code"),
    ("Publisher", "kvasir_publisher"),
    ("PublisherOptions", "kvasir_publisher_options"),
    ("Multimodal", "kvasir_multimodal"),
    ("Stored", "kvasir_stored"),
    ("PublisherStatus", "kvasir_publisher_status"),
];

fn generate(root: &Path) -> String {
    let rename = NAMES.map(|(ours, theirs)| (ours.to_owned(), theirs.to_owned()));
    let config = Config {
        language: Language::C,
        cpp_compat: true,
        header: Some(HEAD.to_owned()),
        include_guard: Some("KVASIR_H".to_owned()),
        documentation_style: DocumentationStyle::C,
        usize_is_size_t: true,
        style: cbindgen::Style::Both,
        line_length: 100,
        export: ExportConfig { rename: HashMap::from(rename), ..ExportConfig::default() },
        ..Config::default()
    };
    let sources = ["types.rs", "abi.rs"].map(|name| root.join("src").join(name));
    let builder = sources.iter().fold(Builder::new(), |all, source| all.with_src(source));
    let mut header = Vec::new();
    let bindings = builder.with_config(config).generate().expect("a header");
    bindings.write(&mut header);
    String::from_utf8(header).expect("text")
}

#[test]
fn the_header_is_current() {
    let root = build::package();
    let path = root.join("include/kvasir.h");
    let fresh = generate(&root);
    if env::var("KVASIR_REGENERATE").is_ok() {
        fs::write(&path, &fresh).expect("write the header");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == fresh, "include/kvasir.h is stale: run scripts/fix");
}
