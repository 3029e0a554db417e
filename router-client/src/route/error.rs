/// An invalid setting of the router. A process refuses to start with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting} {problem}")]
pub struct ConfigError {
    /// Name of the setting.
    pub setting: &'static str,
    /// What is wrong with the setting.
    pub problem: &'static str,
}

/// Returns an error about the setting unless `is_good`.
pub(super) fn check(
    is_good: bool,
    setting: &'static str,
    problem: &'static str,
) -> Result<(), ConfigError> {
    if is_good { Ok(()) } else { Err(ConfigError { setting, problem }) }
}
