use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use strsim::damerau_levenshtein;
use toml::de::ValueDeserializer;
use toml::{Table, Value};

/// Value name of options with [`KeyValues`]. Such a flag can be repeated: the pairs of all flags count.
pub const PAIRS: &str = "KEY=VALUE,...";

/// Maximum edit distance at which an error suggests a key.
const MISSPELT_LETTERS_MAX: usize = 2;

/// An option with several settings, written `key=value,key=value`, or in a file as a table. Settings without a pair keep
/// their defaults; the last pair of a key wins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyValues<T>(pub T);

/// Settings of one option.
pub trait Settings: Clone + Default {
    /// Key of a text without a key, if the option accepts one. Such a text may contain commas.
    const PLAIN_KEY: Option<&'static str> = None;

    /// All settings, each with its key.
    fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)>;
}

/// A setting, read from text and written as text.
pub trait Setting {
    /// Reads the value.
    ///
    /// # Errors
    /// If the text is no such value. The message gives the reason.
    fn read_value(&mut self, text: &str) -> Result<(), String>;

    /// Text of the value; `None` if the setting is unset.
    fn value_text(&self) -> Option<String>;
}

impl<T: FromStr<Err: fmt::Display> + fmt::Display> Setting for T {
    fn read_value(&mut self, text: &str) -> Result<(), String> {
        *self = text.parse().map_err(|error| refused(text, &error))?;
        Ok(())
    }

    fn value_text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// A setting that may be unset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unset<T>(pub Option<T>);

impl<T> Default for Unset<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: FromStr<Err: fmt::Display> + fmt::Display> Setting for Unset<T> {
    fn read_value(&mut self, text: &str) -> Result<(), String> {
        self.0 = Some(text.parse().map_err(|error| refused(text, &error))?);
        Ok(())
    }

    fn value_text(&self) -> Option<String> {
        self.0.as_ref().map(ToString::to_string)
    }
}

/// The reason with the refused value, unless the reason quotes it.
fn refused(text: &str, error: &dyn fmt::Display) -> String {
    let why = error.to_string();
    let quoted = format!("{text:?}");
    if why.contains(&quoted) { why } else { format!("{quoted}: {why}") }
}

impl<T: Settings> FromStr for KeyValues<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut value = T::default();
        let mut plain_key = T::PLAIN_KEY;
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            if rest.starts_with('{') {
                for (key, setting) in table(rest)? {
                    set(&mut value, &key, &setting)?;
                }
                break;
            }
            let (pair, mut after) = rest.split_once(',').unwrap_or((rest, ""));
            let pair = pair.trim();
            let parts = pair.split_once('=').filter(|(key, _)| plain_key.is_none() || is_key(key));
            match (parts, plain_key) {
                (Some((key, setting)), _) => {
                    set(&mut value, key, setting)?;
                    plain_key = plain_key.filter(|plain| *plain != key);
                }
                (None, _) if pair.is_empty() => {}
                (None, Some(key)) => {
                    let plain;
                    (plain, after) = until_pair(&mut value, rest);
                    set(&mut value, key, plain)?;
                    plain_key = None;
                }
                (None, None) => return Err(format!("{pair:?} must be KEY=VALUE")),
            }
            rest = after.trim_start();
        }
        Ok(Self(value))
    }
}

/// The text before the first pair with a known key, and the pairs.
fn until_pair<'a>(value: &mut impl Settings, text: &'a str) -> (&'a str, &'a str) {
    let keys: Vec<_> = value.settings().into_iter().map(|(key, _)| key).collect();
    let commas = text.match_indices(',').map(|(at, _)| text.split_at(at));
    let mut parts = commas.map(|(plain, pairs)| (plain, pairs.trim_start_matches(',')));
    let is_pair = |text: &str| text.split_once('=').is_some_and(|(key, _)| keys.contains(&key));
    parts.find(|(_, pairs)| is_pair(pairs)).unwrap_or((text, ""))
}

/// Whether the text before a `=` can be a key, and not part of a path or a URL.
fn is_key(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
}

/// Returns key and value of each entry of an inline table.
fn table(text: &str) -> Result<Vec<(String, String)>, String> {
    let table = ValueDeserializer::parse(text).and_then(Table::deserialize);
    let table = table.map_err(|error| error.message().to_owned())?;
    let entry = |(key, value): (String, Value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        (key, text)
    };
    Ok(table.into_iter().map(entry).collect())
}

/// Sets the setting with this key. Fails for an unknown key, and names the most similar one.
fn set<T: Settings>(value: &mut T, key: &str, text: &str) -> Result<(), String> {
    let mut known = value.settings();
    if let Some((_, setting)) = known.iter_mut().find(|(name, _)| *name == key) {
        return setting.read_value(text).map_err(|why| format!("{key}: {why}"));
    }
    let keys: Vec<_> = known.into_iter().map(|(name, _)| name).collect();
    let near = keys.iter().map(|name| (damerau_levenshtein(key, name), name)).min();
    Err(match near.filter(|(letters, _)| *letters <= MISSPELT_LETTERS_MAX) {
        Some((_, near)) => format!("there is no key {key:?}: did you mean {near}?"),
        None => format!("{key:?} must be one of {}", keys.join(", ")),
    })
}

impl<T: Settings> fmt::Display for KeyValues<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0.clone();
        let pairs = value.settings().into_iter().filter_map(|(key, setting)| {
            let text = setting.value_text()?;
            Some(format!("{key}={text}"))
        });
        f.write_str(&pairs.collect::<Vec<_>>().join(","))
    }
}

impl<T: Settings> Serialize for KeyValues<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Span;

    #[derive(Debug, Clone, PartialEq)]
    struct Retry {
        wait: Span,
        attempts: Unset<u32>,
    }

    impl Default for Retry {
        fn default() -> Self {
            Self { wait: Span::seconds(2), attempts: Unset(None) }
        }
    }

    impl Settings for Retry {
        fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
            vec![("wait", &mut self.wait), ("attempts", &mut self.attempts)]
        }
    }

    fn read(text: &str) -> Result<String, String> {
        text.parse::<KeyValues<Retry>>().map(|read| read.to_string())
    }

    #[test]
    fn missing_settings_keep_their_defaults() {
        assert_eq!(read("").as_deref(), Ok("wait=2s"));
        assert_eq!(read("attempts=3").as_deref(), Ok("wait=2s,attempts=3"));
        assert_eq!(read("attempts=3, wait=250ms,").as_deref(), Ok("wait=250ms,attempts=3"));
        assert_eq!(read("wait=5s,wait=1s").as_deref(), Ok("wait=1s"), "the last pair wins");
    }

    #[test]
    fn invalid_pairs_are_refused_with_the_fix() {
        for (text, expected) in [
            ("wait", "\"wait\" must be KEY=VALUE"),
            ("pause=1s", "\"pause\" must be one of wait, attempts"),
            ("attempts=x", "attempts: \"x\": invalid digit found in string"),
            ("wait=1", "wait: \"1\" is not a duration"),
            ("attempt=3", "there is no key \"attempt\": did you mean attempts?"),
            ("{ attempts = true }", "attempts: \"true\": invalid digit found in string"),
            ("{ attempts = }", "invalid literal string"),
        ] {
            let error = read(text).expect_err(expected);
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_table_of_a_file_has_the_same_keys() {
        let table = "{ wait = \"1s\", attempts = 3 }";
        assert_eq!(read(table).as_deref(), Ok("wait=1s,attempts=3"));
        // Values of retired options stand before the table.
        assert_eq!(read(&format!("wait=5s,{table}")).as_deref(), Ok("wait=1s,attempts=3"));
    }

    #[derive(Debug, Clone, Default, PartialEq)]
    struct Place {
        file: Unset<String>,
        size: Unset<u32>,
    }

    impl Settings for Place {
        const PLAIN_KEY: Option<&'static str> = Some("file");

        fn settings(&mut self) -> Vec<(&'static str, &mut dyn Setting)> {
            vec![("file", &mut self.file), ("size", &mut self.size)]
        }
    }

    #[test]
    fn a_value_without_a_key_is_the_plain_keys() {
        let read = |text: &str| text.parse::<KeyValues<Place>>().map(|read| read.to_string());
        for (text, expected) in [
            ("/a", "file=/a"),
            ("/a=1,b", "file=/a=1,b"),
            ("size=3,s3://b/c?d=e", "file=s3://b/c?d=e,size=3"),
            ("file=/a,size=3", "file=/a,size=3"),
            ("/a,b,size=3", "file=/a,b,size=3"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(expected), "{text}");
        }
        assert_eq!(read("file=/a,b").expect_err("two files"), "\"b\" must be KEY=VALUE");
        let unknown = read("siz=3").expect_err("no key");
        assert_eq!(unknown, "there is no key \"siz\": did you mean size?");
    }
}
