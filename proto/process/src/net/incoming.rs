use super::{Connection, LimitedListener, Peer};
use futures::{Stream, stream};
use std::{convert::Infallible, sync::Arc};
use tonic::transport::server::Connected;

/// The connections of a port, as tonic wants them.
pub fn incoming(listener: LimitedListener) -> impl Stream<Item = Result<Connection, Infallible>> {
    stream::unfold(listener, |mut listener| async {
        let (connection, _peer) = listener.accept().await;
        Some((Ok(connection), listener))
    })
}

impl Connected for Connection {
    /// Each request knows its client by it.
    type ConnectInfo = Arc<Peer>;

    fn connect_info(&self) -> Arc<Peer> {
        Arc::clone(self.peer())
    }
}
