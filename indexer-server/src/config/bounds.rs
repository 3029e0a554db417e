use super::ConfigError;
use kvasir_process::text::Span;
use std::time::Duration;
use tokio::sync::Semaphore;

/// A time that is not zero.
pub(super) fn positive(field: &str, Span(time): Span) -> Result<Duration, ConfigError> {
    if time.is_zero() {
        return Err(ConfigError::invalid(field, "must be longer than 0s"));
    }
    Ok(time)
}

/// A number of permits of a semaphore.
pub(super) fn count(field: &str, value: usize) -> Result<usize, ConfigError> {
    let max = Semaphore::MAX_PERMITS;
    if !(1..=max).contains(&value) {
        return Err(ConfigError::invalid(field, format!("is {value}, must be 1 to {max}")));
    }
    Ok(value)
}
