/// Most names in one list of an identity.
pub const NAMES_MAX: usize = 1_024;

/// Names that an identity may use: tenants, models or workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Names {
    /// Any name.
    All,
    /// Those that one of these patterns describes.
    Some(Box<[Pattern]>),
}

/// A name, or what names begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// This name.
    Exactly(Box<str>),
    /// Names that begin with this: written with a `*` behind it.
    Prefix(Box<str>),
}

impl Names {
    /// Reads patterns: a name, or the beginning of names with a `*` behind it; `*` alone is any name.
    pub(crate) fn read<T: AsRef<str>>(patterns: &[T]) -> Self {
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

    /// Whether `name` is among them.
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

    /// Whether every name is among them.
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
        let names = Names::read(&["a", "gpu-*", ""]);
        for name in ["a", "gpu-", "gpu-1", ""] {
            assert!(names.contain(name), "{name:?}");
        }
        for name in ["aa", "b", "gpu", "xgpu-1", "*"] {
            assert!(!names.contain(name), "{name:?}");
        }
        assert!(!names.are_all());
        assert!(!Names::read::<&str>(&[]).contain(""));
        assert_eq!(Names::read(&["a", "*"]), Names::All);
        assert!(Names::All.contain("anything") && Names::All.are_all());
    }
}
