//! What engines get wrong: the answer names the field, and nothing panics.

use crate::engine::{Engine, identities, over_tcp, prompt};
use crate::place::{BLOCK_BYTES, HOST_BLOCKS, MODEL, Place};
use anyhow::Result;
use kvasir_proto::pb;
use tonic::{Code, Status};

fn check(refused: Result<impl std::fmt::Debug, Status>, code: Code, text: &str) {
    let status = refused.expect_err(text);
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(text), "{text:?} in {status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_of_other_engines_are_refused() -> Result<()> {
    let place = Place::start(&[]).await?;
    let mut client = over_tcp(place.agent.addresses.grpc)?;
    let right = pb::OpenSessionRequest { model: MODEL.to_owned(), ..Default::default() };
    let others = [
        (pb::OpenSessionRequest::default(), Code::InvalidArgument, "model is required"),
        (
            pb::OpenSessionRequest { model: "other".to_owned(), ..right.clone() },
            Code::NotFound,
            "is not served here",
        ),
        (
            pb::OpenSessionRequest { worker_id: "other".to_owned(), ..right.clone() },
            Code::NotFound,
            "is not served here",
        ),
        (
            pb::OpenSessionRequest { block_bytes: Some(1), ..right.clone() },
            Code::FailedPrecondition,
            "block_bytes is 1, and blocks here have 4096 bytes",
        ),
        (
            pb::OpenSessionRequest { dtype: Some("float8".to_owned()), ..right.clone() },
            Code::FailedPrecondition,
            "dtype is \"float8\", and it is \"float16\" here",
        ),
        (
            pb::OpenSessionRequest { name: "a\nb".to_owned(), ..right },
            Code::InvalidArgument,
            "name has a control character",
        ),
    ];
    for (request, code, text) in others {
        check(client.open_session(request).await, code, text);
    }
    place.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_requests_name_the_field() -> Result<()> {
    let place = Place::start(&[]).await?;
    let mut engine = Engine::open(over_tcp(place.agent.addresses.grpc)?).await?;
    let session_id = engine.session();
    let client = &mut engine.client.clone();
    let unknown = prost::bytes::Bytes::from(vec![9; 16]);
    let wrong = Code::InvalidArgument;
    let missing = Code::FailedPrecondition;
    let allocate = |session_id: &prost::bytes::Bytes, count, lease_ms| {
        let session_id = session_id.clone();
        pb::AllocateRequest { session_id, count, lease_ms }
    };
    check(client.allocate(allocate(&unknown, 1, 1)).await, Code::NotFound, "session_id");
    check(client.allocate(allocate(&session_id, 0, 1)).await, wrong, "count is 0");
    check(client.allocate(allocate(&session_id, 5_000, 1)).await, wrong, "count is 5000");
    let text = "lease_ms is 60001, must be 1 to 60000";
    check(client.allocate(allocate(&session_id, 1, 60_001)).await, wrong, text);
    let all = allocate(&session_id, HOST_BLOCKS as u32 + 1, 1_000);
    check(client.allocate(all).await, Code::ResourceExhausted, "ask again");

    let slot = engine.allocate(1).await?[0];
    let write = |slot, offset_bytes, bytes| pb::WriteRequest {
        session_id: session_id.clone(),
        slot,
        offset_bytes,
        data: vec![0; bytes].into(),
    };
    check(client.write(write(slot + 1, 0, 1)).await, missing, "slot: slot ");
    check(client.write(write(slot, 1, BLOCK_BYTES)).await, wrong, "slot: ");
    check(client.write(write(slot, u64::MAX, 1)).await, wrong, "slot: ");
    check(client.write(write(slot, 0, (4 << 20) + 1)).await, wrong, "data has 4194305 bytes");

    let identity = identities(&prompt(1, 1))[0];
    let commit = |identity| {
        let block = pb::CommitBlock { slot, identity, ..Default::default() };
        pb::CommitRequest { session_id: session_id.clone(), blocks: vec![block] }
    };
    check(client.commit(commit(None)).await, wrong, "blocks[0].identity is required");
    let false_name = pb::BlockIdentity { sequence_hash: 1, ..identity };
    let text = "blocks[0].identity.sequence_hash is 1, must be ";
    check(client.commit(commit(Some(false_name))).await, wrong, text);
    let rootless = pb::BlockIdentity { position: 3, ..identity };
    let text = "blocks[0].identity.parent is not set";
    check(client.commit(commit(Some(rootless))).await, wrong, text);

    let slots = vec![slot];
    let verify = pb::VerifyRequest { session_id: session_id.clone(), slots: slots.clone() };
    check(client.verify(verify).await, missing, "slots[0]: slot ");
    let read = pb::ReadRequest { session_id: session_id.clone(), slots };
    let mut parts = client.read(read).await?.into_inner();
    check(parts.message().await, missing, "slots[0]: slot ");
    let release = pb::ReleaseRequest { session_id: session_id.clone(), slots: Vec::new() };
    check(client.release(release).await, wrong, "slots is required");
    let onboard = pb::OnboardRequest {
        session_id: session_id.clone(),
        sequence_hashes: vec![1; 4_097],
        ..Default::default()
    };
    check(client.onboard(onboard.clone()).await, wrong, "sequence_hashes has 4097 entries");
    let late =
        pb::OnboardRequest { sequence_hashes: vec![1], timeout_ms: Some(0), ..onboard.clone() };
    check(client.onboard(late).await, wrong, "timeout_ms is 0, must be 1 to 25000");
    let nothing = pb::OnboardRequest { sequence_hashes: vec![1], ..onboard };
    let nothing = client.onboard(nothing).await?.into_inner();
    assert_eq!((nothing.blocks.len(), nothing.fault()), (0, pb::BlockFault::Missing));
    let pin = pb::PinRequest { session_id, sequence_hashes: vec![1], ttl_ms: 3_600_001 };
    let text = "ttl_ms is 3600001, must be 1 to 3600000";
    check(client.pin(pin).await, wrong, text);
    place.stop().await;
    Ok(())
}
