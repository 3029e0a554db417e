use super::config::ClientConfig;
use super::owners::{OwnerSeat, Owners};
use crate::backend::FetchFault;
use crate::convert::{Exchange, shard_of};
use crate::limits::{HELLO_TIMEOUT, OWNER_BLOCKS_MAX, VERSION};
use crate::wire::{
    BlockDescription, FrameReader, Hello, Kind, Message, Refusal, RefusalCode, Shard, Welcome,
    WireError, write_all,
};
use kvasir_blocks::sets::{ImportError, RemoteBlockSet, SerializedBlockLayout};
use kvasir_proto::types::WorkerId;
use kvasir_tls::{DialError, Stream};
use std::future::poll_fn;
use std::io::IoSlice;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
use tonic::codegen::http::Uri;

/// A connection on which the owner has accepted this agent.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) reader: FrameReader<Stream>,
    pub(super) set: RemoteBlockSet,
    /// Whether the owner sends complete blocks or parts.
    pub(super) exchange: Exchange,
    /// The part of the heads in the owner's blocks.
    pub(super) shard: Shard,
    /// Bytes of the owner's blocks.
    #[cfg_attr(not(feature = "nixl"), expect(dead_code, reason = "for NIXL alone"))]
    pub(super) block_bytes: usize,
    /// Metadata of the owner's NIXL agent; empty if it does not lend blocks.
    #[cfg_attr(not(feature = "nixl"), expect(dead_code, reason = "for NIXL alone"))]
    pub(super) nixl: Vec<u8>,
    /// Number of the next request.
    pub(super) next_request: u64,
    /// Time of the last use.
    pub(super) used_at: Instant,
    /// Keeps the owner's sets imported.
    #[cfg_attr(not(feature = "nixl"), expect(dead_code, reason = "for NIXL alone"))]
    pub(super) seat: Arc<OwnerSeat>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    /// Connects to a peer, and imports its set.
    pub(super) async fn open(
        config: &ClientConfig,
        owners: &Arc<Owners>,
        peer: &str,
        place: OwnedSemaphorePermit,
    ) -> Result<Self, FetchFault> {
        let opened = config.dialer.open_for_blocks(peer, HELLO_TIMEOUT);
        let late = || FetchFault::Lost(format!("no connection within {HELLO_TIMEOUT:?}"));
        let stream = timeout(HELLO_TIMEOUT, opened).await.map_err(|_late| late())?;
        let stream = stream.map_err(|error| match error {
            DialError::Target(_) | DialError::NoAuthority(_) => {
                FetchFault::Refused(error.to_string())
            }
            DialError::Transport(_) | DialError::Stream(_) => FetchFault::Lost(error.to_string()),
        })?;
        let reader = FrameReader::new(stream, config.blocks.block_bytes);
        let greeted = timeout(HELLO_TIMEOUT, greet(config, peer, reader)).await;
        let (mut reader, welcome) = greeted.map_err(|_late| late())??;
        let Welcome { set, blocks, nixl, .. } = welcome;
        let block_bytes = usize::try_from(blocks.block_bytes).unwrap_or(usize::MAX);
        let (exchange, shard) = agree_exchange(blocks, config.blocks.clone()).await?;
        reader.expect_blocks_of(exchange.payload_bytes(config.blocks.block_bytes));
        // TLS proves only the address. A peer could state another peer's name.
        let owner = WorkerId::new(peer).map_err(|error| FetchFault::Refused(error.to_string()))?;
        let seat = owners.connect(owner);
        let set = import(owners, &seat, &SerializedBlockLayout(set)).await?;
        let blocks = set.layout().num_blocks();
        if blocks > OWNER_BLOCKS_MAX {
            let text = format!("set: it has {blocks} blocks, the limit is {OWNER_BLOCKS_MAX}");
            return Err(FetchFault::Refused(text));
        }
        let used_at = Instant::now();
        let next_request = 0;
        let seat = Arc::new(seat);
        let _place = place;
        Ok(Self {
            reader,
            set,
            exchange,
            shard,
            block_bytes,
            nixl,
            next_request,
            used_at,
            seat,
            _place,
        })
    }

    pub(super) async fn send(&mut self, message: &Message) -> Result<(), WireError> {
        let frame = message.frame(0);
        Ok(write_all(self.reader.io(), &mut [IoSlice::new(&frame)]).await?)
    }
}

/// Returns the authorization for a peer. Engines choose the peers. Therefore the token is sent only to peers that are
/// verified by TLS or run on this machine.
fn authorization(config: &ClientConfig, peer: &str) -> String {
    let shown = config.dialer.authorization().filter(|_| may_see_tokens(peer));
    shown.unwrap_or_default()
}

/// Whether the bearer token may be sent: only over TLS or to this machine.
fn may_see_tokens(peer: &str) -> bool {
    let is_local = |host: &str| {
        let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
        host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    };
    peer.parse::<Uri>()
        .is_ok_and(|peer| peer.scheme_str() == Some("https") || peer.host().is_some_and(is_local))
}

/// Determines whether the owner sends complete blocks or parts. Also returns which part of the heads the owner has.
async fn agree_exchange(
    owner: BlockDescription,
    receiver: BlockDescription,
) -> Result<(Exchange, Shard), FetchFault> {
    let refused = |error: &dyn ToString| FetchFault::Refused(error.to_string());
    let shard = shard_of(&owner).map_err(|error| refused(&error))?;
    if owner == receiver {
        return Ok((Exchange::Whole, shard));
    }
    let planned = spawn_blocking(move || Exchange::new(&owner, &receiver)).await;
    // The panic was logged.
    let planned = planned.map_err(|_panic| FetchFault::Lost("the agent failed".to_owned()))?;
    Ok((planned.map_err(|error| refused(&error))?, shard))
}

/// Sends the hello and receives the welcome. Fails if the peer refuses or has another version.
async fn greet(
    config: &ClientConfig,
    peer: &str,
    mut reader: FrameReader<Stream>,
) -> Result<(FrameReader<Stream>, Welcome), FetchFault> {
    let hello = Message::Hello(Hello {
        version: VERSION,
        authorization: authorization(config, peer),
        worker: config.worker.as_str().to_owned(),
        blocks: config.blocks.clone(),
    });
    let frame = hello.frame(0);
    let lost = |error: WireError| FetchFault::Lost(error.to_string());
    let sent = write_all(reader.io(), &mut [IoSlice::new(&frame)]).await;
    let answer = match sent {
        Ok(()) => reader.frame().await.map_err(lost)?,
        Err(error) => return Err(lost(error.into())),
    };
    match answer {
        Some(Message::Welcome(welcome)) if welcome.version == VERSION => Ok((reader, welcome)),
        Some(Message::Welcome(welcome)) => {
            let text =
                format!("the peer's version is {}, this agent's is {VERSION}", welcome.version);
            Err(FetchFault::Refused(text))
        }
        Some(Message::Refusal(refusal)) => Err(of_refusal(refusal)),
        Some(other) => {
            Err(lost(WireError::Unexpected { found: other.kind(), expected: Kind::Welcome }))
        }
        None => Err(lost(WireError::Closed)),
    }
}

/// Converts a refusal into a fault.
pub(super) fn of_refusal(refusal: Refusal) -> FetchFault {
    match refusal.code() {
        // The refusal may have arrived while the connection was idle: the agent may have restarted since.
        RefusalCode::Stopping => FetchFault::Lost(refusal.text),
        RefusalCode::Late => FetchFault::TimedOut,
        RefusalCode::Unspecified
        | RefusalCode::Version
        | RefusalCode::Denied
        | RefusalCode::Description
        | RefusalCode::Protocol => FetchFault::Refused(refusal.text),
    }
}

/// Imports the owner's set. A newer set fences the older one immediately, and is imported once the transfers of the
/// older set have stopped.
async fn import(
    owners: &Owners,
    seat: &OwnerSeat,
    set: &SerializedBlockLayout,
) -> Result<RemoteBlockSet, FetchFault> {
    let owner = seat.owner();
    loop {
        match owners.registry.import_remote_blockset(owner, set) {
            Ok(set) => return Ok(set),
            Err(ImportError::Quarantined(quarantined)) => {
                let released = poll_fn(|context| {
                    let id = quarantined.set;
                    let is_released =
                        owners.registry.poll_released(Some(owner), id, context.waker());
                    if is_released { Poll::Ready(()) } else { Poll::Pending }
                });
                // The caller limits the waiting time.
                released.await;
            }
            Err(ImportError::Fenced { .. }) => return Err(FetchFault::Fenced),
            Err(error) => return Err(FetchFault::Refused(format!("set: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_for_peers_that_prove_who_they_are_or_are_on_this_machine() {
        for trusted in
            ["https://10.0.0.7:1", "http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1"]
        {
            assert!(may_see_tokens(trusted), "{trusted}");
        }
        for other in [
            "http://10.0.0.7:1",
            "http://127.0.0.1.example:1",
            "http://localhost.example:1",
            "",
            "x",
        ] {
            assert!(!may_see_tokens(other), "{other}");
        }
    }
}
