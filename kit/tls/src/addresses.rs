//! Tries the addresses of a host name in turn.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::time::{Instant, timeout};

/// Maximum number of addresses of a name that are tried.
const ADDRESSES_MAX: usize = 16;

/// Resolves a name and opens a connection to the first address that accepts the client.
pub(crate) async fn open_first<T, F>(
    host: &str,
    port: u16,
    within: Duration,
    open: impl FnMut(SocketAddr) -> F,
) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let begin = Instant::now();
    let addresses: Vec<_> = lookup_host((host, port)).await?.take(ADDRESSES_MAX).collect();
    try_in_turn(&addresses, begin + within, open).await
}

/// Tries the addresses in turn. Each gets an equal share of the remaining time. Returns the error of the last address.
async fn try_in_turn<T, F>(
    addresses: &[SocketAddr],
    until: Instant,
    mut open: impl FnMut(SocketAddr) -> F,
) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let mut error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    for address in addresses {
        let share = until.saturating_duration_since(Instant::now()) / left.max(1);
        left -= 1;
        match timeout(share, open(*address)).await {
            Ok(Ok(opened)) => return Ok(opened),
            Ok(Err(failed)) => error = failed,
            Err(_late) => {
                let text = format!("{address} is not connected within {share:?}");
                error = io::Error::new(io::ErrorKind::TimedOut, text);
            }
        }
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    const SECOND: Duration = Duration::from_secs(1);

    fn addresses(count: u16) -> Vec<SocketAddr> {
        (1..=count).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn one_silent_address_leaves_time_for_the_others() {
        let begin = Instant::now();
        let open = async |at: SocketAddr| {
            if at.port() < 4 {
                pending::<()>().await
            }
            Ok(at.port())
        };
        let opened = try_in_turn(&addresses(4), begin + 4 * SECOND, open).await;
        assert_eq!((opened.ok(), begin.elapsed()), (Some(4), 3 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_fails_at_once_leaves_its_time_to_the_others() {
        let begin = Instant::now();
        let open = async |at: SocketAddr| match at.port() {
            1 => Err(io::ErrorKind::ConnectionRefused.into()),
            _ => pending::<io::Result<()>>().await,
        };
        let opened = try_in_turn(&addresses(3), begin + 4 * SECOND, open).await;
        let error = opened.expect_err("nobody is there");
        assert_eq!((error.kind(), begin.elapsed()), (io::ErrorKind::TimedOut, 4 * SECOND));
        assert!(error.to_string().starts_with("127.0.0.1:3 "), "{error}");
    }

    #[tokio::test]
    async fn a_name_without_addresses_is_an_error() {
        let open = async |_: SocketAddr| Ok(());
        let opened = try_in_turn(&[], Instant::now() + SECOND, open).await;
        assert_eq!(opened.map_err(|error| error.kind()), Err(io::ErrorKind::NotFound));
    }
}
