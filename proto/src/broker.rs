//! Names of the subjects, the stream and the buckets in NATS. Publishers and indexes must agree on the names. Names are
//! independent of shards, so publishers need not know when a bucket moves.
//!
//! | subject | what |
//! | --- | --- |
//! | `kvasir.v1.events.<tenant>.<model>.<bucket>.<worker>.<rank>` | batches, retained by the stream |
//! | `kvasir.v1.heartbeats.<tenant>.<model>.<bucket>.<worker>` | heartbeats |
//! | `kvasir.v1.local.<tenant>.<model>.<worker>.<call>` | requests to an agent's `LocalIndexer` |
//! | `kvasir.v1.loads.<tenant>.<model>.<bucket>.<worker>` | loads of the worker's ranks |
//! | `kvasir.v1.routers.<tenant>.<model>` | active requests, exchanged by the replicas of the router |
//! | `kvasir.v1.storage.<location>.<tenant>.<model>.<worker>` | blocks that a block manager stores and removes |
//! | `kvasir.v1.storage-snapshots.<tenant>.<model>.<worker>` | requests for images of one worker's stored blocks |
//! | `kvasir.v1.storage-snapshots` | requests for images, to all workers |
//!
//! In locations, tenants, models and workers every byte except ASCII letters, digits, `-` and `_` is written as `=`
//! and two hexadecimal digits in upper case; an empty name is written as `=`.
//!
//! Message types: events and heartbeats are `BrokerMessage`, loads are `WorkerLoad`, `routers` subjects have
//! `RouterSync`, storage subjects have `StorageBatch`. A request for images is empty; its only answer is the images on
//! the storage subjects. A request to an agent's `LocalIndexer` is the request message of the call, with a reply
//! subject. Each part of the answer is one message to the reply subject, with the headers of [`answer`].
//!
//! A [`Namespace`] prefixes all names: its name and a dot before each subject, its name and a dash before the stream
//! and each bucket. The names in this file are without the prefix.

use crate::convert::WorkerAddress;
use crate::hash::bucket;
use crate::types::{DpRank, Incarnation, PartitionKey};
use std::fmt::{self, Display, Write};
use std::str::FromStr;
use std::time::Duration;

/// The stream of all batches: subjects [`EVENTS_ALL`].
pub const STREAM: &str = "kvasir-events";
/// How long the stream retains a batch by default.
pub const STREAM_AGE_DEFAULT: Duration = Duration::from_secs(3_600);
/// How many bytes the stream retains by default.
pub const STREAM_BYTES_DEFAULT: u64 = 1 << 30;
/// Deduplication window of the stream: a batch published twice within it is stored once.
pub const DUPLICATES_WITHIN: Duration = Duration::from_secs(120);
/// Subjects of all batches.
pub const EVENTS_ALL: &str = "kvasir.v1.events.>";
/// Subjects of all heartbeats.
pub const HEARTBEATS_ALL: &str = "kvasir.v1.heartbeats.>";
/// Subjects of all loads.
pub const LOADS_ALL: &str = "kvasir.v1.loads.>";
/// Subjects of all replicas of the router.
pub const ROUTERS_ALL: &str = "kvasir.v1.routers.>";
/// Subjects of all storage events.
pub const STORAGE_ALL: &str = "kvasir.v1.storage.>";
/// Subject of requests to all block managers for images of their stored blocks.
pub const STORAGE_SNAPSHOTS: &str = "kvasir.v1.storage-snapshots";
/// Prefix of the object stores of snapshots, one for each shard: `kvasir-snapshots-shard-I-of-N`.
pub const SNAPSHOTS: &str = "kvasir-snapshots";
/// The key-value bucket in which each index publishes the stream position that its checkpoint on disk covers.
pub const COVERAGE: &str = "kvasir-coverage";
/// The key-value bucket of the shard map.
pub const SHARDS: &str = "kvasir-shards";
/// The key of the shard map in its bucket.
pub const SHARD_MAP: &str = "map";

/// Maximum length of a namespace, in bytes.
pub const NAMESPACE_BYTES_MAX: usize = 64;

/// Prefix of all names in NATS, so that several fleets can share an account without seeing each other. Empty by
/// default: names then have no prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Namespace(String);

impl Namespace {
    /// Adds the namespace to a subject.
    #[must_use]
    pub fn subject(&self, subject: impl Display) -> String {
        if self.0.is_empty() { subject.to_string() } else { format!("{}.{subject}", self.0) }
    }

    /// Adds the namespace to the name of the stream or of a bucket.
    #[must_use]
    pub fn stored(&self, name: impl Display) -> String {
        if self.0.is_empty() { name.to_string() } else { format!("{}-{name}", self.0) }
    }
}

impl FromStr for Namespace {
    type Err = String;

    /// Reads a namespace: ASCII letters, digits, `-` and `_`, beginning with a letter or digit. Such a name is one
    /// token of a subject and a valid part of a stream's name, and never a system subject such as `_INBOX`.
    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let begins = text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
        if begins && text.bytes().all(plain) && text.len() <= NAMESPACE_BYTES_MAX {
            return Ok(Self(text.to_owned()));
        }
        Err(format!(
            "must have 1 to {NAMESPACE_BYTES_MAX} ASCII letters, digits, - and _, and begin with a letter or digit"
        ))
    }
}

impl Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Headers of the parts of an answer. The reader confirms each part with an empty message to the part's reply subject.
/// At most [`ANSWER_PARTS_AHEAD_MAX`](crate::limits::ANSWER_PARTS_AHEAD_MAX) parts are unconfirmed (backpressure).
pub mod answer {
    /// Number of the part, from 0. A reader detects a missing part by this number.
    pub const PART: &str = "Kvasir-Part";
    /// gRPC code, as a number, of the error that ends the answer. It replaces a part.
    pub const ERROR_CODE: &str = "Nats-Service-Error-Code";
    /// Text of the error that ends the answer.
    pub const ERROR: &str = "Nats-Service-Error";
}

/// A call of `LocalIndexer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LocalCall {
    /// `GetEvents`.
    Events,
    /// `Dump`.
    Dump,
    /// `GetDigests`.
    Digests,
    /// `GetStatus`.
    Status,
}

impl LocalCall {
    /// All calls.
    pub const ALL: [Self; 4] = [Self::Events, Self::Dump, Self::Digests, Self::Status];

    const fn word(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Dump => "dump",
            Self::Digests => "digests",
            Self::Status => "status",
        }
    }
}

/// Subject of the batches of a rank.
#[must_use]
pub fn events_subject(address: &WorkerAddress, rank: DpRank) -> String {
    let (Names { tenant, model, worker }, bucket) = (names(address), bucket(&address.worker));
    format!("kvasir.v1.events.{tenant}.{model}.{bucket}.{worker}.{rank}")
}

/// Subject of the heartbeats of a worker's sources.
#[must_use]
pub fn heartbeats_subject(address: &WorkerAddress) -> String {
    let (Names { tenant, model, worker }, bucket) = (names(address), bucket(&address.worker));
    format!("kvasir.v1.heartbeats.{tenant}.{model}.{bucket}.{worker}")
}

/// Subject of the loads of a worker's ranks.
#[must_use]
pub fn loads_subject(address: &WorkerAddress) -> String {
    let (Names { tenant, model, worker }, bucket) = (names(address), bucket(&address.worker));
    format!("kvasir.v1.loads.{tenant}.{model}.{bucket}.{worker}")
}

/// Subject on which replicas of the router exchange the active requests of a partition.
#[must_use]
pub fn routers_subject(partition: &PartitionKey) -> String {
    let tenant = Token(partition.tenant());
    let model = Token(partition.model());
    format!("kvasir.v1.routers.{tenant}.{model}")
}

/// Subject of requests to a worker's agent.
#[must_use]
pub fn local_subject(address: &WorkerAddress, call: LocalCall) -> String {
    let Names { tenant, model, worker } = names(address);
    format!("kvasir.v1.local.{tenant}.{model}.{worker}.{}", call.word())
}

/// Subject of the blocks that a worker's block manager stores in a location and removes from it.
#[must_use]
pub fn storage_subject(address: &WorkerAddress, location: &str) -> String {
    let (Names { tenant, model, worker }, location) = (names(address), Token(location));
    format!("kvasir.v1.storage.{location}.{tenant}.{model}.{worker}")
}

/// Subject of requests to a worker's block manager for images of all its locations.
#[must_use]
pub fn storage_snapshots_subject(address: &WorkerAddress) -> String {
    let Names { tenant, model, worker } = names(address);
    format!("{STORAGE_SNAPSHOTS}.{tenant}.{model}.{worker}")
}

/// Subjects of the batches of a bucket's workers.
#[must_use]
pub fn events_of_bucket(bucket: u8) -> String {
    format!("kvasir.v1.events.*.*.{bucket}.*.*")
}

/// Subjects of the heartbeats of a bucket's workers.
#[must_use]
pub fn heartbeats_of_bucket(bucket: u8) -> String {
    format!("kvasir.v1.heartbeats.*.*.{bucket}.*")
}

/// Idempotency key of a batch: the stream drops a batch whose id it has stored within the deduplication window.
#[must_use]
pub fn message_id(
    address: &WorkerAddress,
    source: &str,
    incarnation: Incarnation,
    sequence: u64,
) -> String {
    let Names { tenant, model, worker } = names(address);
    format!("{tenant}.{model}.{worker}.{}.{incarnation}.{sequence}", Token(source))
}

struct Names<'a> {
    tenant: Token<'a>,
    model: Token<'a>,
    worker: Token<'a>,
}

fn names(address: &WorkerAddress) -> Names<'_> {
    Names {
        tenant: Token(address.partition.tenant()),
        model: Token(address.partition.model()),
        worker: Token(address.worker.as_str()),
    }
}

/// Writes a name as one token of a subject, escaped.
struct Token<'a>(&'a str);

impl Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_char('=');
        }
        for byte in self.0.bytes() {
            if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
                f.write_char(char::from(byte))?;
            } else {
                write!(f, "={byte:02X}")?;
            }
        }
        Ok(())
    }
}

/// Delivery of events over NATS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// At most once: to current subscribers only, without retention.
    Core,
    /// Into a JetStream stream, which acknowledges events and retains them for a time.
    Jetstream,
}

impl Delivery {
    const ALL: [(Self, &'static str); 2] = [(Self::Core, "core"), (Self::Jetstream, "jetstream")];
}

impl Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(delivery, _)| delivery == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

impl FromStr for Delivery {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        let found = found.map(|(delivery, _)| *delivery);
        found.ok_or_else(|| format!("{text:?} is not one of core, jetstream"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::WorkerId;

    fn address(model: &str, tenant: &str, worker: &str) -> WorkerAddress {
        let partition = PartitionKey::new(model, tenant).expect("valid");
        WorkerAddress { partition, worker: WorkerId::new(worker).expect("valid") }
    }

    #[test]
    fn subjects_have_one_token_a_name() {
        let plain = address("llama", "", "w-0");
        let at = bucket(&plain.worker);
        let events = format!("kvasir.v1.events.=.llama.{at}.w-0.3");
        assert_eq!(events_subject(&plain, 3), events);
        let heartbeats = format!("kvasir.v1.heartbeats.=.llama.{at}.w-0");
        assert_eq!(heartbeats_subject(&plain), heartbeats);
        let loads = format!("kvasir.v1.loads.=.llama.{at}.w-0");
        assert_eq!(loads_subject(&plain), loads);
        assert_eq!(routers_subject(&plain.partition), "kvasir.v1.routers.=.llama");
        let storage = storage_subject(&plain, "volume:a b");
        assert_eq!(storage, "kvasir.v1.storage.volume=3Aa=20b.=.llama.w-0");
        let snapshots = storage_snapshots_subject(&plain);
        assert_eq!(snapshots, "kvasir.v1.storage-snapshots.=.llama.w-0");
        let local = local_subject(&plain, LocalCall::Dump);
        assert_eq!(local, "kvasir.v1.local.=.llama.w-0.dump");

        let hostile = address("org/model 3.1>", "*", "host:8000.é");
        let local = local_subject(&hostile, LocalCall::Status);
        assert_eq!(local, "kvasir.v1.local.=2A.org=2Fmodel=203=2E1=3E.host=3A8000=2E=C3=A9.status");
        for subject in [events_subject(&hostile, 0), events_subject(&plain, 0)] {
            assert_eq!(subject.split('.').count(), 8);
        }
    }

    #[test]
    fn a_namespace_is_one_token_before_all_names() {
        let none = Namespace::default();
        assert_eq!(
            (none.subject(EVENTS_ALL), none.stored(STREAM)),
            (EVENTS_ALL.into(), STREAM.into())
        );
        let fleet: Namespace = "fleet-a_1".parse().expect("a name");
        assert_eq!(fleet.subject(EVENTS_ALL), "fleet-a_1.kvasir.v1.events.>");
        assert_eq!(fleet.stored(STREAM), "fleet-a_1-kvasir-events");
        let long = "a".repeat(NAMESPACE_BYTES_MAX + 1);
        for bad in ["", "a.b", "a b", "*", ">", "a>", "$JS", "_INBOX", "-a", "é", "a\n", &long] {
            let why = bad.parse::<Namespace>().expect_err(bad);
            assert!(why.starts_with("must have 1 to 64 ASCII letters"), "{why}");
        }
        assert!("a".repeat(NAMESPACE_BYTES_MAX).parse::<Namespace>().is_ok());
    }

    #[test]
    fn message_ids_are_unique() {
        let id = |worker: &str, source: &str, incarnation, sequence| {
            message_id(&address("m", "", worker), source, Incarnation(incarnation), sequence)
        };
        let ids = [id("a", "b", 1, 1), id("a.b", "", 1, 1), id("a", "b", 2, 1), id("a", "b", 1, 2)];
        for (at, one) in ids.iter().enumerate() {
            assert!(!ids.iter().skip(at + 1).any(|other| other == one), "{one}");
        }
    }
}
