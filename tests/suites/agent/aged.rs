//! Programs in the test's process, whose ports replace each connection after a second.

use anyhow::{Result, bail};
use kvasir_process::config::Action;
use kvasir_sim::server::Addresses;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::interval;

/// Age of a connection.
pub const AGE: Duration = Duration::from_secs(1);

/// An address of this machine that no other test uses: ports that were just free stay free.
const ALONE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);

/// An agent.
pub struct AgedAgent {
    pub addresses: Addresses,
    stop: oneshot::Sender<()>,
    running: JoinSet<Result<()>>,
}

impl AgedAgent {
    /// Starts an agent and waits until it listens.
    pub async fn start<F: AsRef<str>>(flags: &[F]) -> Result<Self> {
        let free = [TcpListener::bind((ALONE, 0))?, TcpListener::bind((ALONE, 0))?];
        let [grpc, http]: [SocketAddr; 2] = [free[0].local_addr()?, free[1].local_addr()?];
        drop(free);
        let fixed = [format!("--listen={grpc}"), format!("--http-listen={http}")];
        let all = fixed.into_iter().chain(flags.iter().map(|flag| flag.as_ref().to_owned()));
        let arguments = [OsString::from("kvbm-agent")].into_iter().chain(all.map(OsString::from));
        let Action::Run(mut config, _) = kvbm_agent::config::read(arguments)? else {
            bail!("the flags request no agent");
        };
        config.agent.guard.connection_age = Some(AGE);
        config.http.guard.connection_age = Some(AGE);
        let (stop, stopped) = oneshot::channel::<()>();
        let mut running = JoinSet::new();
        running.spawn(async move {
            let signal = async {
                let _dropped = stopped.await;
            };
            Ok(kvbm_agent::app::run(*config, signal).await?)
        });
        let mut looks = interval(Duration::from_millis(10));
        while TcpStream::connect(grpc).await.is_err() || TcpStream::connect(http).await.is_err() {
            looks.tick().await;
            if let Some(ended) = running.try_join_next() {
                ended??;
            }
        }
        Ok(Self { addresses: Addresses { grpc, http }, stop, running })
    }

    /// Stops the agent.
    pub async fn stop(mut self) -> Result<()> {
        let _ended = self.stop.send(());
        while let Some(ended) = self.running.join_next().await {
            ended??;
        }
        Ok(())
    }
}
