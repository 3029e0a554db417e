/// Maximum number of names in one list of an identity.
pub const NAMES_MAX: usize = 1_024;

/// Names that an identity may use: tenants, models or workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Names {
    /// Any name.
    All,
    /// Names that match at least one pattern.
    Some(Box<[Pattern]>),
}

/// A name, or a prefix of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// Exactly this name.
    Exactly(Box<str>),
    /// All names with this prefix; written with a trailing `*`.
    Prefix(Box<str>),
}

impl Names {
    /// Parses patterns: a name, or a prefix with a trailing `*`. `*` alone matches every name.
    pub(crate) fn parse<T: AsRef<str>>(patterns: &[T]) -> Self {
        let patterns = patterns.iter().map(AsRef::as_ref);
        if patterns.clone().any(|pattern| pattern == "*") {
            return Self::All;
        }
        let read = |pattern: &str| match pattern.strip_suffix('*') {
            Some(prefix) => Pattern::Prefix(prefix.into()),
            None => Pattern::Exactly(pattern.into()),
        };
        Self::Some(patterns.map(read).collect())
    }

    /// Whether `name` matches.
    #[must_use]
    pub fn contain(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Some(patterns) => patterns.iter().any(|pattern| match pattern {
                Pattern::Exactly(exactly) => **exactly == *name,
                Pattern::Prefix(prefix) => name.starts_with(&**prefix),
            }),
        }
    }

    /// Whether every name matches.
    #[must_use]
    pub const fn are_all(&self) -> bool {
        matches!(self, Self::All)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_name_or_its_beginning() {
        let names = Names::parse(&["a", "gpu-*", ""]);
        for name in ["a", "gpu-", "gpu-1", ""] {
            assert!(names.contain(name), "{name:?}");
        }
        for name in ["aa", "b", "gpu", "xgpu-1", "*"] {
            assert!(!names.contain(name), "{name:?}");
        }
        assert!(!names.are_all());
        assert!(!Names::parse::<&str>(&[]).contain(""));
        assert_eq!(Names::parse(&["a", "*"]), Names::All);
        assert!(Names::All.contain("anything") && Names::All.are_all());
    }
}
