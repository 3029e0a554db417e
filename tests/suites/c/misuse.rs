use crate::build::{Linked, compile, source, succeeded};
use std::process::Command;

#[test]
fn what_callers_get_wrong_is_a_code_and_a_text() {
    let program = compile("cc", "-std=c11", &source("misuse.c"), Linked::Dynamically);
    succeeded(&mut Command::new(&program.path));
}

#[test]
fn the_header_is_cpp_too() {
    let program = compile("c++", "-std=c++11", &source("header.cpp"), Linked::Dynamically);
    succeeded(&mut Command::new(&program.path));
}
