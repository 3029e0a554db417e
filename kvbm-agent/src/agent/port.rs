//! Serves the agent's port, and its socket for engines.

use super::AgentError;
use crate::service::{Offered, serve, serve_socket};
use kvasir_process::access::Guard;
use kvasir_process::net::SocketFile;
use kvasir_process::port::PortMetrics;
use kvasir_tasks::group::TaskGroup;
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// Serves the blocks' socket, the port for other agents and the agent's gRPC port, each only if configured. Returns the
/// bound address of the gRPC port, and the metrics of the ports.
pub(super) async fn serve_local(
    address: Option<SocketAddr>,
    guard: Guard,
    offered: Offered,
    socket: Option<SocketFile>,
    tasks: &mut TaskGroup,
) -> Result<(Option<SocketAddr>, PortMetrics), AgentError> {
    let metrics = PortMetrics::default();
    if let (Some(socket), Some(blocks)) = (socket, offered.blocks.clone()) {
        tracing::info!(path = %socket.path().display(), "blocks are served here, too");
        let serving = serve_socket(socket, blocks, metrics.clone());
        tasks.spawn("blocks socket", async { Ok(serving.await?) });
    }
    if let Some(blocks) = offered.blocks.clone().filter(|blocks| blocks.has_peer_port()) {
        tasks.spawn("blocks peers", blocks.serve_peers());
    }
    let Some(address) = address else { return Ok((None, metrics)) };
    let (listener, bound) = listen(address).await?;
    let serving = serve(listener, guard, offered, metrics.clone());
    tasks.spawn("gRPC port", async { Ok(serving.await?) });
    Ok((Some(bound), metrics))
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), AgentError> {
    let bound = async {
        let listener = TcpListener::bind(address).await?;
        let bound = listener.local_addr()?;
        Ok((listener, bound))
    };
    bound.await.map_err(|error| AgentError::Listen { address, error })
}
