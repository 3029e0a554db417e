//! The contract of Kvasir: what servers, routers, agents and engines must agree on.
//!
//! - [`types`]: value types without serialisation: hashes, workers, tiers, cursors, events.
//! - [`hash`]: tokens to block hashes, in the single implementation for all sides.
//! - [`digest`]: digests of a source's blocks, by which two sides find differences (anti-entropy).
//! - [`shard`]: the shard that owns a worker.
//! - [`target`]: addresses of gRPC ports in text form.
//! - [`limits`]: every limit on messages of peers.
//! - [`code`]: the error codes of all services, and their mapping to gRPC status.
//! - `pb`, `codec`, `find_codec`, `convert` and `broker` (feature `grpc`): generated messages, their size checks on the
//!   wire, the fast path for queries and answers, conversions that reject invalid messages, and the names of subjects,
//!   streams and buckets in NATS.

#[cfg(feature = "grpc")]
pub mod broker;
pub mod code;
#[cfg(feature = "grpc")]
pub mod codec;
#[cfg(feature = "grpc")]
pub mod convert;
pub mod digest;
#[cfg(feature = "grpc")]
pub mod find_codec;
pub mod hash;
pub mod limits;
pub mod shard;
pub mod target;
pub mod types;

/// Generated messages and services of package `kvasir.v1`.
#[cfg(feature = "grpc")]
#[allow(
    clippy::allow_attributes,
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::absolute_paths,
    clippy::allow_attributes_without_reason,
    clippy::clone_on_ref_ptr,
    clippy::missing_errors_doc,
    clippy::struct_excessive_bools,
    clippy::too_many_lines,
    clippy::wildcard_imports,
    clippy::wildcard_enum_match_arm,
    reason = "generated code"
)]
pub mod pb {
    include!("gen/kvasir.v1.rs");
    include!("gen/kvasir.v1.server.rs");

    /// Encoded `FileDescriptorSet` of the package, for gRPC reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("gen/kvasir.v1.bin");
}
