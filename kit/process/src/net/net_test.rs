use super::{
    Connection, ConnectionLimits, ConnectionMetrics, LimitedListener, Patience, PeerLimits,
};
use prometheus_client::metrics::gauge::Gauge;
use std::io::ErrorKind;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::either::Either;

const SHORT: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(3_600);

/// Returns a connection, its peer, and the listener, which has no room for another connection.
async fn connect(
    first_byte: Duration,
    idle: Duration,
) -> (Connection, TcpStream, LimitedListener, Gauge) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let metrics = ConnectionMetrics::default();
    let patience = Patience { first_byte, idle, untaken: SHORT };
    let limits = ConnectionLimits { connections: 1, patience, peer: PeerLimits::default() };
    let mut listener = LimitedListener::new(listener, limits, metrics.clone());
    let address = listener.local_addr().expect("an address");
    let peer = TcpStream::connect(address).await.expect("a listener");
    let connection = listener.accept().await;
    (connection, peer, listener, metrics.open)
}

async fn read(connection: &mut Connection) -> Result<u8, ErrorKind> {
    connection.read_u8().await.map_err(|error| error.kind())
}

#[tokio::test]
async fn a_connection_whose_first_byte_does_not_come_is_closed_and_makes_room() {
    let (mut connection, _peer, mut listener, open) = connect(SHORT, LONG).await;
    assert_eq!(read(&mut connection).await, Err(ErrorKind::TimedOut));
    drop(connection);
    assert_eq!(open.get(), 0);
    let address = listener.local_addr().expect("an address");
    let _next = TcpStream::connect(address).await.expect("a listener");
    let _room = listener.accept().await;
    assert_eq!(open.get(), 1);
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_closed() {
    let (mut connection, mut peer, _listener, _open) = connect(LONG, SHORT).await;
    peer.write_all(b"x").await.expect("an open connection");
    assert_eq!(read(&mut connection).await, Ok(b'x'));
    assert_eq!(read(&mut connection).await, Err(ErrorKind::TimedOut));
}

#[tokio::test]
async fn what_was_sent_in_time_is_read_however_late() {
    let (mut connection, mut peer, _listener, _open) = connect(Duration::ZERO, LONG).await;
    peer.write_all(b"x").await.expect("an open connection");
    let Either::Left(stream) = connection.stream() else { panic!("a socket file") };
    stream.readable().await.expect("an open connection");
    assert_eq!(read(&mut connection).await, Ok(b'x'));
}

#[tokio::test]
async fn a_connection_whose_peer_takes_nothing_is_closed() {
    let (mut connection, _peer, _listener, _open) = connect(LONG, LONG).await;
    let written = connection.write_all(&vec![0; 64 << 20]).await;
    assert_eq!(written.map_err(|error| error.kind()), Err(ErrorKind::TimedOut));
}
