//! Deadlines of calls: the client's deadline in the header `grpc-timeout`, and the port's timeout.

use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;
use tonic::codegen::http::HeaderMap;

/// gRPC header with the client's timeout.
const HEADER: &str = "grpc-timeout";
/// Maximum number of digits in the header.
const DIGITS_MAX: usize = 8;

/// Deadlines of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deadlines {
    /// Deadline for the beginning of the answer.
    pub(super) head: Instant,
    /// Deadline for the end of the answer, if any.
    pub(super) end: Option<Instant>,
}

impl Deadlines {
    /// Deadlines of a call that begins now. The answer must begin within `most`.
    pub(super) fn from_headers(headers: &HeaderMap, most: Duration, now: Instant) -> Self {
        let asked = headers.get(HEADER).and_then(|text| parse_timeout(text.to_str().ok()?));
        // A timeout beyond the clock's range means no deadline.
        let end = asked.and_then(|time| now.checked_add(time));
        let head = now + most;
        Self { head: end.map_or(head, |end| end.min(head)), end }
    }
}

/// The status of a call that has exceeded its deadline.
pub(super) fn exceeded() -> Status {
    Status::deadline_exceeded("the call has exceeded its deadline")
}

/// Parses a timeout in gRPC's form: up to eight digits and a unit. Any other value means no deadline.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > DIGITS_MAX {
        return None;
    }
    let number: u64 =
        digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())??;
    match unit {
        "H" => Some(Duration::from_secs(number * 3_600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::codegen::http::HeaderValue;

    #[test]
    fn times_are_read_as_grpc_writes_them() {
        for (text, time) in [
            ("5H", Duration::from_secs(18_000)),
            ("99999999M", Duration::from_secs(99_999_999 * 60)),
            ("0S", Duration::ZERO),
            ("250m", Duration::from_millis(250)),
            ("7u", Duration::from_micros(7)),
            ("00000001n", Duration::from_nanos(1)),
        ] {
            assert_eq!(parse_timeout(text), Some(time), "{text:?}");
        }
        for text in ["", "S", "5", "5s", "-5S", "+5S", "5 S", "123456789S", "5é", "é"] {
            assert_eq!(parse_timeout(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_client_shortens_the_time_of_its_call_and_never_lengthens_it() {
        let now = Instant::now();
        let limit = Duration::from_secs(30);
        let of = |text: Option<&'static str>| {
            let value =
                text.map(|text| (HEADER.parse().expect("a name"), HeaderValue::from_static(text)));
            Deadlines::from_headers(&HeaderMap::from_iter(value), limit, now)
        };
        let most = now + limit;
        let second = now + Duration::from_secs(1);
        assert_eq!(of(None), Deadlines { head: most, end: None });
        assert_eq!(of(Some("1S")), Deadlines { head: second, end: Some(second) });
        let hour = now + Duration::from_secs(3_600);
        assert_eq!(of(Some("1H")), Deadlines { head: most, end: Some(hour) });
        assert_eq!(of(Some("soon")), of(None));
    }
}
