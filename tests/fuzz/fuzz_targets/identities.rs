#![no_main]

#[path = "../../suites/fuzz/targets/mod.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    targets::run("identities", input);
});
