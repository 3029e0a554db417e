//! Option values in text form: durations, byte counts, server URLs, pairs of key and value.

mod key_values;
mod server_url;

pub use key_values::{KeyValues, PAIRS, Setting, Settings, Unset};
pub use server_url::ServerUrl;

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;
use toml::de::ValueDeserializer;
use toml::{Table, Value};

/// A duration, written as 250ms, 10s, 5m, 2h or 30d.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

impl Span {
    /// A duration in seconds.
    #[must_use]
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// The duration in complete milliseconds, if it is in `range`.
    ///
    /// # Errors
    /// If the duration is outside the range. The message contains the value and the range.
    pub fn millis_within(self, range: RangeInclusive<u32>) -> Result<u32, String> {
        let millis = u32::try_from(self.0.as_millis()).ok();
        millis.filter(|millis| range.contains(millis)).ok_or_else(|| {
            let span = |millis: &u32| Self(Duration::from_millis((*millis).into()));
            let min = span(range.start());
            let max = span(range.end());
            format!("is {self}, must be {min} to {max}")
        })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        if millis.is_multiple_of(1_000) {
            write!(f, "{}s", millis / 1_000)
        } else {
            write!(f, "{millis}ms")
        }
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|at: char| !at.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = UNITS.iter().find(|(name, _)| *name == unit);
        let millis = number.parse::<u64>().ok().zip(unit);
        let millis = millis.and_then(|(number, (_, millis))| number.checked_mul(*millis));
        millis
            .map(|millis| Self(Duration::from_millis(millis)))
            .ok_or_else(|| format!("{text:?} is not a duration: write 250ms, 10s, 5m, 2h or 30d"))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A number of bytes, written as 8GiB (powers of 1024), 8GB (powers of 1000) or 8589934592.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteCount(pub usize);

const BYTE_UNITS: [(&str, usize); 9] = [
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("KB", 1_000),
    ("", 1),
];

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The largest unit that divides the number: 1000KiB, not 1024KB.
        let whole = BYTE_UNITS.iter().find(|(_, bytes)| self.0.is_multiple_of(*bytes));
        let (unit, bytes) = whole.filter(|_| self.0 > 0).unwrap_or(&("", 1));
        write!(f, "{}{unit}", self.0 / bytes)
    }
}

impl Serialize for ByteCount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for ByteCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.find(|at: char| !at.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = BYTE_UNITS.iter().find(|(name, _)| *name == unit);
        let bytes = number.parse::<usize>().ok().zip(unit);
        let bytes = bytes.and_then(|(number, (_, bytes))| number.checked_mul(*bytes));
        bytes.map(Self).ok_or_else(|| {
            format!("{text:?} is not a number of bytes: write 8GiB, 8GB or 8589934592")
        })
    }
}

/// Writes a value as text, for `#[serde(with)]`.
///
/// # Errors
/// If the serializer fails.
pub fn serialize<T: fmt::Display, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Functions for `#[serde(with)]` on an optional value.
pub mod optional {
    use super::{Deserialize, Deserializer, Error, FromStr, Serializer, fmt};

    /// Writes the value, if present.
    ///
    /// # Errors
    /// If the serializer fails.
    #[expect(clippy::ref_option, reason = "as serde wants it")]
    pub fn serialize<T: fmt::Display, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.collect_str(value),
            None => serializer.serialize_none(),
        }
    }

    /// Reads the value. For an absent value, serde does not call this function.
    ///
    /// # Errors
    /// If the text is not a valid value.
    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: fmt::Display>,
        D: Deserializer<'de>,
    {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Some).map_err(D::Error::custom)
    }
}

/// Reads `key=value,key=value` like a table of the file. Values are text, except those of `numbers` and `flags`. Like
/// in the file, `name.key=value` is an entry of the table `name`, if `name` is in `tables`. A table that is also in
/// `numbers` has numbers as values. An inline table of TOML, `{ key = value }`, is read as TOML.
///
/// # Errors
/// If the text is not such a table. The error names the key.
pub fn read_table<T: DeserializeOwned>(
    text: &str,
    numbers: &[&str],
    flags: &[&str],
    tables: &[&str],
) -> Result<T, String> {
    if text.starts_with('{') {
        let table = ValueDeserializer::parse(text).and_then(T::deserialize);
        return table.map_err(|error| error.message().to_owned());
    }
    let mut table = Table::new();
    for pair in text.split(',') {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| format!("{pair:?} is no key=value"))?;
        let entry = key.split_once('.').filter(|(name, _)| tables.contains(name));
        let value = if numbers.contains(&entry.map_or(key, |(name, _)| name)) {
            let number: u32 = value.parse().map_err(|error| format!("{key}: {error}"))?;
            Value::Integer(number.into())
        } else if flags.contains(&key) {
            Value::Boolean(value.parse().map_err(|error| format!("{key}: {error}"))?)
        } else {
            Value::String(value.to_owned())
        };
        let twice = || format!("{key} is given twice");
        let (table, key) = match entry {
            None if tables.contains(&key) => {
                return Err(format!("{key} needs a name: write {key}.NAME=VALUE"));
            }
            Some((name, entry)) => {
                let nested = table.entry(name).or_insert_with(|| Value::Table(Table::new()));
                (nested.as_table_mut().ok_or_else(twice)?, entry)
            }
            None => (&mut table, key),
        };
        if table.insert(key.to_owned(), value).is_some() {
            return Err(twice());
        }
    }
    T::deserialize(Value::Table(table)).map_err(|error| error.message().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_written() {
        let check = |text: &str, millis: u64, written: &str| {
            let span: Span = text.parse().expect(text);
            assert_eq!(span, Span(Duration::from_millis(millis)));
            assert_eq!(span.to_string(), written);
        };
        check("250ms", 250, "250ms");
        check("10s", 10_000, "10s");
        check("10m", 600_000, "600s");
        check("2h", 7_200_000, "7200s");
        check("30d", 2_592_000_000, "2592000s");
        check("1000ms", 1_000, "1s");
        for bad in ["", "10", "s", "1.5s", "-1s", "10 s", "99999999999999999999s"] {
            let expected = format!("{bad:?} is not a duration: write 250ms, 10s, 5m, 2h or 30d");
            assert_eq!(bad.parse::<Span>(), Err(expected));
        }
    }

    #[test]
    fn bytes_are_read_and_written() {
        let check = |text: &str, bytes: usize, written: &str| {
            let count: ByteCount = text.parse().expect(text);
            assert_eq!((count, &*count.to_string()), (ByteCount(bytes), written));
        };
        check("8GiB", 8 << 30, "8GiB");
        check("512MiB", 512 << 20, "512MiB");
        check("1024MiB", 1 << 30, "1GiB");
        check("3KiB", 3_072, "3KiB");
        check("8GB", 8_000_000_000, "8GB");
        check("1000KB", 1_000_000, "1MB");
        check("1TB", 1_000_000_000_000, "1TB");
        check("1024000", 1_024_000, "1000KiB");
        check("1000001", 1_000_001, "1000001");
        check("0", 0, "0");
        for bad in
            ["", "GiB", "GB", "8G", "8gb", "8Gb", "1.5GiB", "-1", "8 GiB", "8gib", "99999999999TiB"]
        {
            let expected =
                format!("{bad:?} is not a number of bytes: write 8GiB, 8GB or 8589934592");
            assert_eq!(bad.parse::<ByteCount>(), Err(expected));
        }
    }
}
