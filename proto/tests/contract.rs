//! The contract only grows: what a version has defined, later versions define in the same way. So programs of different
//! versions understand each other, and JSON clients such as grpcurl keep working.
//!
//! `tests/data/contract.txt` has a line for each element. `KVASIR_REGENERATE=1` adds new elements. A line is removed by hand
//! alone, together with a new package version.
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test may read its switch from the environment, and panic"
)]

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, MethodDescriptorProto,
};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The generated descriptors; `codegen.rs` compares them with the `.proto` files.
const DESCRIPTORS: &[u8] = include_bytes!("../src/gen/kvasir.v1.bin");

fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/contract.txt")
}

/// Type of a field, with its cardinality and oneof.
fn field_type(field: &FieldDescriptorProto, of: &DescriptorProto) -> String {
    let name = match field.type_name() {
        "" => field.r#type().as_str_name().trim_start_matches("TYPE_").to_lowercase(),
        named => named.to_owned(),
    };
    let repeated = if field.label() == Label::Repeated { "repeated " } else { "" };
    let oneof = field.oneof_index.and_then(|at| of.oneof_decl.get(usize::try_from(at).ok()?));
    let oneof = match (field.proto3_optional(), oneof) {
        (true, _) => "optional ".to_owned(),
        (false, Some(oneof)) => format!("oneof {} ", oneof.name()),
        (false, None) => String::new(),
    };
    format!("{oneof}{repeated}{name}")
}

fn add_message(path: &str, message: &DescriptorProto, lines: &mut BTreeSet<String>) {
    let path = format!("{path}.{}", message.name());
    lines.insert(format!("message {path}"));
    for field in &message.field {
        let kind = field_type(field, message);
        lines.insert(format!("field {path}.{} = {} {kind}", field.name(), field.number()));
    }
    message.nested_type.iter().for_each(|nested| add_message(&path, nested, lines));
    message.enum_type.iter().for_each(|nested| add_enum(&path, nested, lines));
}

fn add_enum(path: &str, of: &EnumDescriptorProto, lines: &mut BTreeSet<String>) {
    for value in &of.value {
        lines.insert(format!("enum {path}.{}.{} = {}", of.name(), value.name(), value.number()));
    }
}

fn call(service: &str, method: &MethodDescriptorProto) -> String {
    let stream = |is_stream: bool| if is_stream { "stream " } else { "" };
    let (request, answer) = (stream(method.client_streaming()), stream(method.server_streaming()));
    let (input, output) = (method.input_type(), method.output_type());
    format!("call {service}/{} ({request}{input}) {answer}{output}", method.name())
}

/// A line for each element of the files.
fn elements(files: &[FileDescriptorProto]) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for file in files {
        let path = format!(".{}", file.package());
        file.message_type.iter().for_each(|message| add_message(&path, message, &mut lines));
        file.enum_type.iter().for_each(|of| add_enum(&path, of, &mut lines));
        for service in &file.service {
            let name = format!("{path}.{}", service.name());
            lines.extend(service.method.iter().map(|method| call(&name, method)));
        }
    }
    lines
}

/// Recorded elements that `now` lacks or defines otherwise.
fn broken<'r>(recorded: &'r str, now: &BTreeSet<String>) -> Vec<&'r str> {
    recorded.lines().filter(|line| !now.contains(*line)).collect()
}

#[test]
fn what_was_released_is_still_there() {
    let set = FileDescriptorSet::decode(DESCRIPTORS).expect("descriptors");
    let now = elements(&set.file);
    assert!(now.len() > 300, "{} elements", now.len());
    let mut text = fs::read_to_string(recorded()).unwrap_or_default();
    let broken = broken(&text, &now);
    assert!(broken.is_empty(), "other programs still use these: {broken:#?}");
    let all: Vec<_> = now.iter().map(String::as_str).collect();
    if env::var_os("KVASIR_REGENERATE").is_some() {
        text = all.join("\n") + "\n";
        fs::write(recorded(), &text).expect("a writable file");
    }
    let known: Vec<_> = text.lines().collect();
    assert_eq!(known, all, "run this with KVASIR_REGENERATE=1 to record new elements");
}

#[test]
fn each_incompatible_change_is_found() {
    let file = |change: &dyn Fn(&mut FileDescriptorProto)| {
        let mut set = FileDescriptorSet::decode(DESCRIPTORS).expect("descriptors");
        set.file.iter_mut().filter(|file| file.name().ends_with("indexer.proto")).for_each(change);
        elements(&set.file)
    };
    let recorded: Vec<_> = file(&|_same| {}).into_iter().collect();
    let recorded = recorded.join("\n");
    assert_eq!(broken(&recorded, &file(&|_same| {})), Vec::<&str>::new());
    type Change<'c> = &'c dyn Fn(&mut FileDescriptorProto);
    let changes: [(&str, Change<'_>, bool); 11] = [
        (
            "a new field",
            &|file| {
                let field = FieldDescriptorProto {
                    name: Some("later".to_owned()),
                    number: Some(9_999),
                    ..file.message_type[0].field[0].clone()
                };
                file.message_type[0].field.push(field);
            },
            false,
        ),
        ("a field is gone", &|file| drop(file.message_type[0].field.remove(0)), true),
        ("another name", &|file| file.message_type[0].field[0].name = Some("x".to_owned()), true),
        ("another number", &|file| file.message_type[0].field[0].number = Some(9_999), true),
        ("another type", &|file| file.message_type[0].field[0].set_type(Type::Fixed64), true),
        ("repeated", &|file| file.message_type[0].field[0].set_label(Label::Repeated), true),
        ("a value is gone", &|file| drop(file.enum_type[0].value.remove(0)), true),
        ("another value", &|file| file.enum_type[0].value[0].number = Some(9_999), true),
        ("a call is gone", &|file| drop(file.service[0].method.remove(0)), true),
        ("a message is gone", &|file| drop(file.message_type.remove(0)), true),
        ("a call streams", &|file| file.service[0].method[0].server_streaming = Some(true), true),
    ];
    for (what, change, breaks) in changes {
        assert_eq!(!broken(&recorded, &file(change)).is_empty(), breaks, "{what}");
    }
}
