//! A running program: its tasks and ports, with an ordered shutdown.

use crate::telemetry::Readiness;
use kvasir_tasks::group::TaskGroup;
use kvasir_tasks::tasks::{EndError, Ended, end};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::select;
use tokio::time::Instant;

/// A port cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("{option}: cannot listen on {address}: {error}; choose another address with --{option}")]
pub struct ListenError {
    option: &'static str,
    address: SocketAddr,
    error: io::Error,
}

/// Opens the port of the option `option`. Returns its address as well: port 0 selects a free port.
///
/// # Errors
/// If the address is in use, or does not belong to this machine.
pub async fn listen(
    option: &'static str,
    address: SocketAddr,
) -> Result<(TcpListener, SocketAddr), ListenError> {
    let bound = TcpListener::bind(address).await;
    let bound = bound.and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (address, listener) = bound.map_err(|error| ListenError { option, address, error })?;
    Ok((listener, address))
}

/// Tasks of a program.
#[derive(Debug)]
pub struct Program {
    /// The main port and the tasks behind it, which stop first.
    pub main: TaskGroup,
    /// The side port and the recording of metrics and logs, which stop last.
    pub side: TaskGroup,
    /// Readiness as shown by the side port; not ready while the program stops.
    pub readiness: Readiness,
}

impl Program {
    /// Runs until `signal` is ready or a task ends early, then shuts down in order.
    ///
    /// # Errors
    /// If a task ended early, or the shutdown took longer than `drain_timeout`.
    pub async fn run(
        mut self,
        signal: impl Future<Output = ()>,
        drain_timeout: Duration,
    ) -> Result<(), EndError> {
        let fault = select! {
            () = pin!(signal) => None,
            fault = self.main.next_ended() => fault,
            fault = self.side.next_ended() => fault,
        };
        if let Some(Ended { name, outcome }) = &fault {
            tracing::error!(task = name, ?outcome, "a task ended early: the program stops");
        }
        let stopping = self.readiness.hold("stopping");
        tracing::info!("stopping");
        let deadline = Instant::now() + drain_timeout;
        let is_stopped = self.main.stop_by(deadline).await;
        // Until now, the side port showed that the program is stopping.
        let is_clean = self.side.stop_by(deadline).await && is_stopped;
        drop(stopping);
        end(fault, is_clean, drain_timeout)?;
        tracing::info!("stopped");
        Ok(())
    }
}
