//! Converts JSON to msgpack, so that tests can write payloads as text. `{"$bin": hex}` is a byte string;
//! `{"$raw": hex}` is copied verbatim.

use crate::frames::hex;
use serde_json::Value;

pub(crate) fn pack(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    write(value, &mut out);
    out
}

fn write(value: &Value, out: &mut Vec<u8>) {
    let length = |length: usize| u32::try_from(length).expect("short");
    match value {
        Value::Null => rmp::encode::write_nil(out).expect("memory"),
        Value::Bool(bool) => rmp::encode::write_bool(out, *bool).expect("memory"),
        Value::Number(number) => {
            if let Some(unsigned) = number.as_u64() {
                rmp::encode::write_uint(out, unsigned).expect("memory");
            } else if let Some(signed) = number.as_i64() {
                rmp::encode::write_sint(out, signed).expect("memory");
            } else {
                rmp::encode::write_f64(out, number.as_f64().expect("f64")).expect("memory");
            }
        }
        Value::String(text) => rmp::encode::write_str(out, text).expect("memory"),
        Value::Array(members) => {
            rmp::encode::write_array_len(out, length(members.len())).expect("memory");
            members.iter().for_each(|member| write(member, out));
        }
        Value::Object(entries) => {
            if let Some(bytes) = entries.get("$bin") {
                let bytes = hex(bytes.as_str().expect("hexadecimal"));
                rmp::encode::write_bin(out, &bytes).expect("memory");
            } else if let Some(bytes) = entries.get("$raw") {
                out.extend(hex(bytes.as_str().expect("hexadecimal")));
            } else {
                rmp::encode::write_map_len(out, length(entries.len())).expect("memory");
                for (key, value) in entries {
                    rmp::encode::write_str(out, key).expect("memory");
                    write(value, out);
                }
            }
        }
    }
}
