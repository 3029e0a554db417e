use super::Connection;
use super::core::RETRY_PAUSE;
use async_nats::jetstream;
use async_nats::jetstream::kv::{Config, Entry, Operation, Watch};
use bytes::Bytes;
use futures::StreamExt;
use kvasir_proto::broker::{SHARD_MAP, SHARDS};
use tokio::time::sleep;

/// Number of map versions that the bucket retains.
const HISTORY: i64 = 16;

/// The map of shards in NATS' key-value store.
pub struct ShardMaps {
    connection: Connection,
    watch: Option<Watch>,
}

impl std::fmt::Debug for ShardMaps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ShardMaps")
    }
}

impl ShardMaps {
    /// Creates a reader without a connection to the key-value store yet.
    #[must_use]
    pub const fn new(connection: Connection) -> Self {
        Self { connection, watch: None }
    }

    /// Returns the current map, then each new one, as text. Waits for the broker if necessary, and may return a map
    /// again. Cancel-safe.
    pub async fn next(&mut self) -> Bytes {
        loop {
            let entry = match &mut self.watch {
                Some(watch) => watch.next().await,
                None => match Self::open_watch(self.connection.clone()).await {
                    Ok(watch) => {
                        self.watch = Some(watch);
                        continue;
                    }
                    Err(error) => {
                        let bucket = self.connection.namespace.stored(SHARDS);
                        tracing::warn!(%error, bucket, "the map of shards cannot be read");
                        sleep(RETRY_PAUSE).await;
                        continue;
                    }
                },
            };
            match entry {
                Some(Ok(Entry { value, operation: Operation::Put, .. })) => return value,
                // A deleted map stays valid until a new one arrives.
                Some(Ok(_deleted)) => {}
                Some(Err(_)) | None => {
                    self.watch = None;
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Watches the key of the shard map. Creates the bucket if it is missing.
    async fn open_watch(connection: Connection) -> Result<Watch, async_nats::Error> {
        let name = connection.namespace.stored(SHARDS);
        let context = jetstream::new(connection.client);
        let bucket = match context.get_key_value(&name).await {
            Ok(bucket) => bucket,
            Err(_missing) => {
                let config = Config { bucket: name, history: HISTORY, ..Config::default() };
                context.create_key_value(config).await?
            }
        };
        Ok(bucket.watch_with_history(SHARD_MAP).await?)
    }
}
