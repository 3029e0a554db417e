use serde::{Serialize, Serializer};
use std::{fmt, str::FromStr};

/// Value name of options with [`KeyValues`]. Such a flag can be repeated: the pairs of all flags count.
pub const PAIRS: &str = "KEY=VALUE,...";

/// An option with several settings, written `key=value,key=value`. Settings without a pair keep their defaults; the last
/// pair of a key wins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyValues<T>(pub T);

/// Settings of one option.
pub trait Settings: Clone + Default {
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
        *self = text.parse().map_err(|error| format!("{text:?}: {error}"))?;
        Ok(())
    }

    fn value_text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// A setting that may be unset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unset<T>(pub Option<T>);

impl<T: FromStr<Err: fmt::Display> + fmt::Display> Setting for Unset<T> {
    fn read_value(&mut self, text: &str) -> Result<(), String> {
        self.0 = Some(text.parse().map_err(|error| format!("{text:?}: {error}"))?);
        Ok(())
    }

    fn value_text(&self) -> Option<String> {
        self.0.as_ref().map(ToString::to_string)
    }
}

impl<T: Settings> FromStr for KeyValues<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut value = T::default();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let Some((key, setting)) = pair.split_once('=') else {
                return Err(format!("{pair:?} must be KEY=VALUE"));
            };
            let mut known = value.settings();
            match known.iter_mut().find(|(name, _)| *name == key) {
                Some((_, to)) => to.read_value(setting).map_err(|why| format!("{key}: {why}"))?,
                None => {
                    let keys: Vec<_> = known.into_iter().map(|(name, _)| name).collect();
                    return Err(format!("{key:?} must be one of {}", keys.join(", ")));
                }
            }
        }
        Ok(Self(value))
    }
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
            ("wait=1", "wait: \"1\": "),
        ] {
            let error = read(text).expect_err(expected);
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }
}
