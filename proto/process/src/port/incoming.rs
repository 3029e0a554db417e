use crate::{
    net::Peer,
    tls::{Accepting, Socket},
};
use futures::{Stream, stream};
use std::{convert::Infallible, sync::Arc};
use tonic::transport::server::Connected;

/// The connections of a port, as tonic wants them.
pub(super) fn incoming(accepting: Accepting) -> impl Stream<Item = Result<Socket, Infallible>> {
    stream::unfold(accepting, |mut accepting| async {
        let socket = accepting.accept().await;
        Some((Ok(socket), accepting))
    })
}

impl Connected for Socket {
    /// Each request knows its client by it.
    type ConnectInfo = Arc<Peer>;

    fn connect_info(&self) -> Arc<Peer> {
        Arc::clone(self.peer())
    }
}
