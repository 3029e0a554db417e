use std::fmt;
use std::str::FromStr;

/// What happens to a source's blocks after batches of it were lost for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LossPolicy {
    /// Keep blocks from before the loss for a while, as suspects (stale).
    Keep,
    /// Drop the blocks immediately.
    Clear,
}

impl fmt::Display for LossPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Keep => "keep",
            Self::Clear => "clear",
        })
    }
}

impl FromStr for LossPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "keep" => Ok(Self::Keep),
            "clear" => Ok(Self::Clear),
            _ => Err(format!("{text:?} is not one of keep, clear")),
        }
    }
}
