use super::{Connection, LimitedListener};
use futures::{Stream, stream};
use std::convert::Infallible;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// The connections of a port, as tonic wants them.
pub fn incoming(listener: LimitedListener) -> impl Stream<Item = Result<Connection, Infallible>> {
    stream::unfold(listener, |mut listener| async {
        let (connection, _peer) = listener.accept().await;
        Some((Ok(connection), listener))
    })
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream().connect_info()
    }
}
