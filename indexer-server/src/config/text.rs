//! Values that are written as text.

use serde::{Deserialize, Deserializer, Serializer, de::Error};
use std::{fmt, str::FromStr, time::Duration};

/// A length of time, written as 250ms, 10s, 5m or 2h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

impl Span {
    /// So many seconds.
    #[must_use]
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
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
            .ok_or_else(|| format!("{text:?} is no time: write 250ms, 10s, 5m or 2h"))
    }
}

/// For `#[serde(with)]` on a value.
pub(super) fn serialize<T: fmt::Display, S: Serializer>(
    value: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// For `#[serde(with)]` on an optional value.
pub(super) mod optional {
    use super::{Deserialize, Deserializer, Error, FromStr, Serializer, fmt};

    #[expect(clippy::ref_option, reason = "as serde wants it")]
    pub(in crate::config) fn serialize<T: fmt::Display, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.collect_str(value),
            None => serializer.serialize_none(),
        }
    }

    pub(in crate::config) fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: fmt::Display>,
        D: Deserializer<'de>,
    {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Some).map_err(D::Error::custom)
    }
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
        check("1000ms", 1_000, "1s");
        for bad in ["", "10", "s", "1.5s", "-1s", "10 s", "99999999999999999999s"] {
            let expected = format!("{bad:?} is no time: write 250ms, 10s, 5m or 2h");
            assert_eq!(bad.parse::<Span>(), Err(expected));
        }
    }
}
