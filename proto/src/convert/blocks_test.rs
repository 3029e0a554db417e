use super::*;

const SESSION: [u8; 16] = [7; 16];

fn session_id() -> Bytes {
    SessionId(SESSION).message()
}

fn identity() -> pb::BlockIdentity {
    let sequence_hash = hash::sequence_hash(None, LocalHash(5)).0;
    pb::BlockIdentity { sequence_hash, parent: None, local_hash: 5, position: 0 }
}

fn commit(change: impl FnOnce(&mut pb::CommitBlock)) -> Result<Commits, String> {
    let mut block =
        pb::CommitBlock { slot: 3, identity: Some(identity()), checksum: None, priority: 9 };
    change(&mut block);
    let request = pb::CommitRequest { session_id: session_id(), blocks: vec![block] };
    Commits::try_from(request).map_err(|error| error.to_string())
}

fn commit_as(change: impl FnOnce(&mut pb::BlockIdentity)) -> String {
    let mut identity = identity();
    change(&mut identity);
    commit(|block| block.identity = Some(identity)).expect_err("a wrong identity")
}

#[test]
fn a_commit_is_read() {
    let commits = commit(|_| {}).expect("a right request");
    let key = BlockKey {
        sequence: hash::sequence_hash(None, LocalHash(5)),
        parent: None,
        local: LocalHash(5),
        position: 0,
    };
    let block = BlockCommit { slot: 3, key, checksum: None, priority: 9 };
    assert_eq!(commits, Commits { session: SessionId(SESSION), blocks: vec![block] });
}

#[test]
fn a_wrong_commit_names_the_field() {
    let refused = commit(|block| block.identity = None).expect_err("no identity");
    assert_eq!(refused, "blocks[0].identity is required");
    let refused = commit(|block| block.priority = 256).expect_err("a high priority");
    assert_eq!(refused, "blocks[0].priority is 256, must be 0 to 255");
    let refused = commit_as(|identity| identity.sequence_hash = 1);
    assert!(refused.starts_with("blocks[0].identity.sequence_hash is 1, must be "), "{refused}");
    let refused = commit_as(|identity| identity.parent = Some(1));
    assert!(refused.starts_with("blocks[0].identity.parent is set, must be "), "{refused}");
    let refused = commit_as(|identity| identity.position = 1);
    assert!(refused.starts_with("blocks[0].identity.parent is not set, must be "), "{refused}");
    let refused = commit_as(|identity| identity.position = 65_536);
    assert_eq!(refused, "blocks[0].identity.position is 65536, must be 0 to 65535");
    let block = pb::CommitBlock { slot: 3, identity: Some(identity()), ..Default::default() };
    let request = |blocks| pb::CommitRequest { session_id: session_id(), blocks };
    let refused = Commits::try_from(request(vec![block; 2])).expect_err("one slot twice");
    assert_eq!(refused.to_string(), "blocks[1].slot repeats slot 3: each may be given once");
    let refused = Commits::try_from(request(vec![block; 1_025])).expect_err("too many");
    assert_eq!(refused.to_string(), "blocks has 1025 entries, the limit is 1024: send fewer");
    let refused = Commits::try_from(request(Vec::new())).expect_err("nothing");
    assert_eq!(refused.to_string(), "blocks is required");
}

#[test]
fn other_wrong_requests_name_the_field() {
    let session_id = session_id();
    let lease = pb::AllocateRequest { session_id: session_id.clone(), count: 0, lease_ms: 1 };
    let refused = SlotLease::try_from(lease.clone()).expect_err("nothing");
    assert_eq!(refused.to_string(), "count is 0, must be 1 to 4096");
    let refused = SlotLease::try_from(pb::AllocateRequest { count: 1, lease_ms: 0, ..lease });
    assert!(refused.expect_err("no lease").to_string().starts_with("lease_ms is 0, must be 1 to "));
    let data = Bytes::from(vec![0; BLOCK_WRITE_BYTES_MAX + 1]);
    let write = pb::WriteRequest { session_id: session_id.clone(), data, ..Default::default() };
    let refused = BlockWrite::try_from(write).expect_err("too much");
    assert_eq!(refused.to_string(), "data has 4194305 bytes, the limit is 4194304");
    let short = pb::EndSessionRequest { session_id: Bytes::from_static(b"short") };
    let refused = SessionId::try_from(short).expect_err("a short id");
    assert_eq!(refused.to_string(), "session_id has 5 bytes, must be exactly 16");
    let onboard = pb::OnboardRequest {
        session_id: session_id.clone(),
        sequence_hashes: vec![1],
        timeout_ms: Some(25_001),
        ..Default::default()
    };
    let refused = Onboarding::try_from(onboard).expect_err("too long");
    assert_eq!(refused.to_string(), "timeout_ms is 25001, must be 1 to 25000");
    let find = |rate, wait| pb::MatchPrefixRequest {
        sequence_hashes: vec![1],
        prefill_tokens_per_second: rate,
        prefill_wait_ms: wait,
        ..Default::default()
    };
    let refused = PrefixQuery::try_from(find(Some(f64::NAN), 0)).expect_err("no rate");
    assert_eq!(refused.to_string(), "prefill_tokens_per_second is NaN, must be above 0");
    let refused = PrefixQuery::try_from(find(None, 1)).expect_err("a wait alone");
    let why = "prefill_wait_ms must not be set without prefill_tokens_per_second";
    assert_eq!(refused.to_string(), why);
    assert!(PrefixQuery::try_from(find(Some(1.0), 1)).is_ok());
    let pins = vec![pb::BlockPin { tier: 9, pin_id: 1, deadline_ns: 1 }];
    let refused = UnpinBlocks::try_from(pb::UnpinRequest { session_id, pins });
    let refused = refused.expect_err("an unknown tier");
    assert_eq!(refused.to_string(), "pins[0].tier has the unknown value 9");
}

#[test]
fn session_ids_are_not_shown() {
    assert_eq!(format!("{:?}", SessionId(SESSION)), "SessionId(***)");
}
