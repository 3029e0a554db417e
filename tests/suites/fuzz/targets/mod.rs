//! What is done with any bytes. Each target returns whether it understood them, and panics if a promise is broken.
//! The replay test and the libFuzzer targets in `tests/fuzz` share these.

mod checkpoint;
mod dump;
mod events;
mod frames;
mod identities;
mod journal;
mod messages;
mod scratch;

#[allow(unused_imports, reason = "the corpus is made with it")]
pub use journal::config as journal_config;

/// A target: whether the input was understood.
pub type Target = fn(&[u8]) -> bool;

/// All targets by the names of their binaries and corpora.
pub const TARGETS: [(&str, Target); 7] = [
    ("frames", frames::target),
    ("events", events::target),
    ("messages", messages::target),
    ("checkpoint", checkpoint::target),
    ("dump", dump::target),
    ("journal", journal::target),
    ("identities", identities::target),
];

/// Runs the target of that name.
pub fn run(name: &str, input: &[u8]) -> bool {
    let target = TARGETS.iter().find(|(of, _)| *of == name);
    target.is_some_and(|(_, target)| target(input))
}

/// The input as parts: two bytes of length (little-endian) before each. The last one may be cut off.
fn parts(mut input: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while let Some((length, rest)) = input.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (part, behind) = rest.split_at(length);
        parts.push(part);
        input = behind;
    }
    parts
}
