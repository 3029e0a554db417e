//! Sizes are signals: past these, a file wants splitting.

use crate::sources::rust_files;

const FILE_LINES_MAX: usize = 500;
const LIB_LINES_MAX: usize = 120;
const MAIN_LINES_MAX: usize = 120;

#[test]
fn no_file_is_too_long() {
    let mut faults = Vec::new();
    for source in rust_files().iter().filter(|source| !source.is_test()) {
        let limit = match source.path.rsplit('/').next() {
            Some("lib.rs") => LIB_LINES_MAX,
            Some("main.rs") => MAIN_LINES_MAX,
            _ => FILE_LINES_MAX,
        };
        let lines = source.production_lines();
        if lines > limit {
            faults.push(format!("{}: {lines} lines, the limit is {limit}", source.path));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}
