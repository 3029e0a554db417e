/// A setting of the router that cannot be used. A process refuses to start with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{setting} {problem}")]
pub struct ConfigError {
    /// Name of the setting.
    pub setting: &'static str,
    /// What is wrong with it.
    pub problem: &'static str,
}

/// Refuses what is not true of a setting.
pub(super) fn check(
    is_good: bool,
    setting: &'static str,
    problem: &'static str,
) -> Result<(), ConfigError> {
    if is_good { Ok(()) } else { Err(ConfigError { setting, problem }) }
}
