//! Writes JSON like Python's `json.dumps`, which chat templates expect: a space after each comma and colon, and no HTML
//! escapes.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io::{self, Write};

/// Maximum indentation.
const INDENT_MAX: usize = 16;

/// The template filter `tojson`: writes a value as Python's JSON.
#[expect(clippy::needless_pass_by_value, reason = "as the template engine calls filters")]
pub(super) fn tojson(value: Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Templates expect Python's text without ASCII escapes; the order of keys is preserved.
    let _ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    let _sort_keys: Option<bool> = options.get("sort_keys")?;
    let _separators: Option<Value> = options.get("separators")?;
    options.assert_all_used()?;
    let failed =
        |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let mut text = Vec::new();
    match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut text, Spaced)),
        Some(indent) => {
            let spaces = " ".repeat(indent.min(INDENT_MAX));
            let pretty = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut text, pretty))
        }
    }
    .map_err(failed)?;
    let text = String::from_utf8(text);
    text.map(Value::from_safe_string)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// `{"a": 1, "b": [2, 3]}`
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(b": ")
    }
}
