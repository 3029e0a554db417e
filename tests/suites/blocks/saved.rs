use crate::engine::{Engine, bytes_of, hashes, identities, over_socket, over_tcp, prompt};
use crate::place::{BLOCK_BYTES, Chain, DISK_BLOCKS, HOST_BLOCKS, LOOK, PATIENCE, Place};
use anyhow::{Context, Result};
use kvasir_proto::pb;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use tokio::time::{sleep, timeout};

/// Chains that the tiers have, as the index shows them: host is 1, disk 2. A chain begins at the first block whose parent
/// is nowhere.
pub async fn held(engine: &mut Engine, prompts: &[Vec<u64>]) -> Result<BTreeSet<Chain>> {
    held_beside(BTreeSet::new(), engine, prompts).await
}

/// The same beside chains from the root that another source has, and these.
pub async fn held_beside(
    others: BTreeSet<Chain>,
    engine: &mut Engine,
    prompts: &[Vec<u64>],
) -> Result<BTreeSet<Chain>> {
    let mut chains = others.clone();
    for locals in prompts {
        let mut first = 0;
        for (at, sequence) in hashes(locals).into_iter().enumerate() {
            let mut tiers = engine.tiers(sequence).await?;
            tiers.retain(|tier| *tier != pb::BlockTier::Volume);
            for tier in &tiers {
                let tier = if *tier == pb::BlockTier::Host { 1 } else { 2 };
                chains.insert((0, locals[first..=at].to_vec(), tier));
            }
            if tiers.is_empty() && !others.contains(&(0, locals[..=at].to_vec(), 0)) {
                first = at + 1;
            }
        }
    }
    Ok(chains)
}

/// How many leading blocks of all prompts are somewhere.
pub fn leading(chains: &BTreeSet<Chain>, prompts: &[Vec<u64>]) -> usize {
    let is_held = |chain: &[u64]| (1..=2).any(|tier| chains.contains(&(0, chain.to_vec(), tier)));
    let leading = |locals: &Vec<u64>| {
        (1..=locals.len()).take_while(|count| is_held(&locals[..*count])).count()
    };
    prompts.iter().map(leading).sum()
}

/// Waits until nothing moves, and the index is equal to the tiers.
pub async fn until_equal(
    place: &Place,
    engine: &mut Engine,
    prompts: &[Vec<u64>],
) -> Result<BTreeSet<Chain>> {
    engine.until_copied().await?;
    let expected = held(engine, prompts).await?;
    place.until_indexed(&expected).await?;
    Ok(expected)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_saved_is_found_in_host_memory_and_then_on_disk() -> Result<()> {
    let place = Place::start(&["--blocks-offload=false"]).await?;
    let mode = fs::metadata(place.socket())?.permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "of the same user only");
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    assert_eq!(engine.opened.block_bytes, BLOCK_BYTES as u64);
    assert_eq!(engine.opened.slots as usize, HOST_BLOCKS);
    assert_eq!(engine.opened.engine_tier(), pb::BlockTier::Host);
    let locals = prompt(1, 8);
    engine.save(&locals).await?;
    place.until_found(&locals, 8, 0).await?;
    let request = pb::OffloadRequest {
        session_id: engine.session(),
        sequence_hashes: hashes(&locals),
        priority: 1,
    };
    let outcomes = engine.client.offload(request).await?.into_inner().outcomes;
    assert!(outcomes.iter().all(|at| *at == pb::OffloadOutcome::Queued as i32), "{outcomes:?}");
    place.until_found(&locals, 8, 8).await?;
    assert_eq!(engine.load(&locals).await?, 8);
    let slots = place.metric("kvasir_agent_blocks_slots", "tier=\"disk\",state=\"inactive\"");
    assert_eq!(slots.await? as u64, 8);
    assert_eq!(place.metric("kvasir_agent_blocks_sessions", "").await? as u64, 1);
    engine.end().await?;
    assert_eq!(place.metric("kvasir_agent_blocks_sessions", "").await? as u64, 0);
    assert_eq!(place.metric("kvasir_agent_blocks_sessions_lost_total", "").await? as u64, 0);
    place.stop().await;
    Ok(())
}

/// Two engines over TCP without shared memory, and more blocks than host memory has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_host_memory_has_no_room_for_comes_back_from_the_disk() -> Result<()> {
    let place = Place::start(&["--blocks-host", "arena=private"]).await?;
    let mut engine = Engine::open(over_tcp(place.agent.addresses.grpc)?).await?;
    assert!(engine.opened.arena.is_none());
    let prompts: Vec<_> = (1..=24).map(|number| prompt(number, 4)).collect();
    assert!(prompts.len() * 4 > 4 * HOST_BLOCKS && prompts.len() * 4 < DISK_BLOCKS);
    for locals in &prompts {
        engine.save(locals).await?;
        engine.until_copied().await?;
    }
    until_equal(&place, &mut engine, &prompts).await?;
    let mut other = Engine::open(over_tcp(place.agent.addresses.grpc)?).await?;
    for locals in &prompts {
        assert_eq!(other.load(locals).await?, 4);
    }
    let expected = until_equal(&place, &mut engine, &prompts).await?;
    let on_disk = expected.iter().filter(|(_, _, tier)| *tier == 2).count();
    assert_eq!((on_disk, expected.len() - on_disk), (prompts.len() * 4, HOST_BLOCKS));
    let corrupt = place.metric("kvasir_agent_blocks_corrupt_total", "tier=\"disk\"").await;
    assert!(corrupt.is_err() || corrupt.is_ok_and(|count| count == 0.0));
    place.stop().await;
    Ok(())
}

/// The volume takes what the disk has no room for. The index counts that as the pool's, not as the worker's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_disk_has_no_room_for_comes_back_from_the_volume() -> Result<()> {
    let volume = tempfile::tempdir()?;
    let volume = format!("url=file://{},bytes=1MiB", volume.path().display());
    let place = Place::with_disk(2 * HOST_BLOCKS, &["--blocks-volume", &volume]).await?;
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    let prompts: Vec<_> = (1..=20).map(|number| prompt(number, 4)).collect();
    assert!(prompts.len() * 4 > 2 * HOST_BLOCKS);
    for locals in &prompts {
        engine.save(locals).await?;
        engine.until_copied().await?;
    }
    let stats = engine.stats().await?;
    let in_volume = stats.pools.iter().find(|pool| pool.tier() == pb::BlockTier::Volume);
    assert_eq!(in_volume.context("a volume")?.inactive as usize, prompts.len() * 4);
    for locals in &prompts {
        let onboarded = engine.onboard(locals).await?;
        let found: Vec<_> = onboarded.blocks.iter().map(pb::HeldBlock::found_in).collect();
        assert_eq!(found.len(), 4, "{:?}", onboarded.fault());
        if *locals == prompts[0] {
            assert_eq!(found, [pb::BlockTier::Volume; 4]);
        }
        engine.release(&onboarded.blocks).await?;
        assert_eq!(engine.load(locals).await?, 4, "and the bytes are right");
        engine.until_copied().await?;
    }
    let expected = until_equal(&place, &mut engine, &prompts).await?;
    assert!(expected.len() <= 3 * HOST_BLOCKS, "{} in host memory and on disk", expected.len());
    place.stop().await;
    Ok(())
}

/// Waits until the volume has a block, and nobody else.
async fn until_in_volume(engine: &mut Engine, sequence: u64) -> Result<()> {
    while engine.tiers(sequence).await? != [pb::BlockTier::Volume] {
        sleep(LOOK).await;
    }
    Ok(())
}

/// A volume outlives its agents: one that begins with nothing finds what another one stored there, and so does one that runs
/// already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_agents_find_what_is_in_the_volume() -> Result<()> {
    let volume = tempfile::tempdir()?;
    let volume = format!("url=file://{},bytes=1MiB", volume.path().display());
    let searching = format!("{volume},search-interval=100ms");
    let flags = ["--blocks-volume", &volume];
    let first = Place::start(&flags).await?;
    let running = Place::start(&["--blocks-volume", &searching]).await?;
    let mut engine = Engine::open(over_socket(&first.socket()).await?).await?;
    let prompts: Vec<_> = (1..=3).map(|number| prompt(number, 4)).collect();
    for locals in &prompts {
        engine.save(locals).await?;
    }
    engine.until_copied().await?;
    first.stop().await;
    for place in [running, Place::start(&flags).await?] {
        let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
        for locals in &prompts {
            let last = *hashes(locals).last().context("a block")?;
            timeout(PATIENCE, until_in_volume(&mut engine, last))
                .await
                .context("never found")??;
            assert_eq!(engine.load(locals).await?, 4, "and the bytes are right");
        }
        place.stop().await;
    }
    Ok(())
}

/// What the disk gives back is not what was saved: nobody gets it, and the index hears of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_bytes_are_withdrawn_and_never_served() -> Result<()> {
    let place = Place::start(&[]).await?;
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    let locals = prompt(1, 4);
    let held = engine.save_held(&locals).await?;
    engine.until_copied().await?;
    place.until_found(&locals, 4, 4).await?;
    // A stray write of an engine into the mapped memory: the host copy is wrong from now on.
    let arena = engine.opened.arena.clone().context("shared memory")?;
    let file = fs::OpenOptions::new().write(true).open(&arena.path)?;
    let offset = arena.start_bytes + u64::from(held[3].slot) * arena.stride_bytes;
    file.write_all_at(b"stray", offset)?;
    let slots = vec![held[3].slot];
    let request = pb::VerifyRequest { session_id: engine.session(), slots: slots.clone() };
    let verified = engine.client.verify(request).await?.into_inner().blocks;
    assert_eq!(verified[0].fault(), pb::BlockFault::Corrupt);
    let request = pb::ReadRequest { session_id: engine.session(), slots };
    let mut parts = engine.client.read(request).await?.into_inner();
    let part = parts.message().await?.context("a part")?;
    assert_eq!((part.fault(), part.data.len()), (pb::BlockFault::Corrupt, 0));
    place.until_found(&locals, 3, 4).await?;
    engine.release(&held).await?;
    assert_eq!(engine.load(&locals).await?, 4, "the disk's copy is right");
    let corrupt = place.metric("kvasir_agent_blocks_corrupt_total", "tier=\"host\"").await?;
    assert!(corrupt >= 1.0);
    place.stop().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_hold_pin_and_ask_whether_to_load() -> Result<()> {
    let place = Place::start(&[]).await?;
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    let locals = prompt(1, 4);
    engine.save(&locals).await?;
    engine.until_copied().await?;
    let request = pb::MatchPrefixRequest {
        session_id: engine.session(),
        sequence_hashes: hashes(&prompt(1, 6)),
        hold: true,
        ..Default::default()
    };
    let found = engine.client.match_prefix(request.clone()).await?.into_inner();
    assert_eq!((found.nearest.len(), found.held.len()), (4, 4));
    assert_eq!(found.nearest().collect::<Vec<_>>(), [pb::BlockTier::Host; 4]);
    assert_eq!(engine.read(found.held[2].slot).await?, bytes_of(hashes(&locals)[2]));
    engine.release(&found.held).await?;
    let pin = pb::PinRequest {
        session_id: engine.session(),
        sequence_hashes: hashes(&prompt(1, 5)),
        ttl_ms: 60_000,
    };
    let pinned = engine.client.pin(pin).await?.into_inner().blocks;
    assert_eq!(pinned[4].fault(), pb::BlockFault::Missing);
    let pins: Vec<_> = pinned.into_iter().filter_map(|block| block.pin).collect();
    // Others fill host memory: what is pinned stays.
    for number in 2..=10 {
        engine.save(&prompt(number, 4)).await?;
        engine.until_copied().await?;
    }
    for sequence in hashes(&locals) {
        assert!(engine.tiers(sequence).await?.contains(&pb::BlockTier::Host), "{sequence:016x}");
    }
    let request = pb::UnpinRequest { session_id: engine.session(), pins: pins.clone() };
    assert_eq!(engine.client.unpin(request.clone()).await?.into_inner().unpinned, 4);
    assert_eq!(engine.client.unpin(request).await?.into_inner().unpinned, 0);
    for number in 11..=16 {
        engine.save(&prompt(number, 4)).await?;
        engine.until_copied().await?;
    }
    assert!(!engine.tiers(hashes(&locals)[3]).await?.contains(&pb::BlockTier::Host));
    // The gate knows the way down only: what was not measured is to be loaded.
    let ask = |rate| pb::MatchPrefixRequest {
        sequence_hashes: hashes(&locals),
        prefill_tokens_per_second: Some(rate),
        ..Default::default()
    };
    let verdicts = engine.client.match_prefix(ask(1e15)).await?.into_inner().verdicts;
    let [verdict] = &verdicts[..] else { panic!("{verdicts:?}") };
    assert_eq!((verdict.from(), verdict.load_us), (pb::BlockTier::Disk, None));
    assert!(verdict.is_load && verdict.blocks > 0, "{verdict:?}");
    assert_eq!(verdict.load_bytes, u64::from(verdict.blocks) * BLOCK_BYTES as u64);
    assert_eq!(engine.load(&locals).await?, 4);
    // It is measured now; whoever computes that fast need not load.
    let last = prompt(2, 4);
    let request = pb::MatchPrefixRequest { sequence_hashes: hashes(&last), ..ask(1e15) };
    let verdicts = engine.client.match_prefix(request).await?.into_inner().verdicts;
    let [verdict] = &verdicts[..] else { panic!("{verdicts:?}") };
    assert!(!verdict.is_load && verdict.bytes_per_second > Some(0), "{verdict:?}");
    let computes = place.metric("kvasir_agent_blocks_verdicts_total", "verdict=\"compute\"");
    assert_eq!(computes.await? as u64, 1);
    place.stop().await;
    Ok(())
}

/// A block that is committed twice counts once; a wrong copy is noticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_slot_of_a_commit_has_an_outcome_of_its_own() -> Result<()> {
    let place = Place::start(&[]).await?;
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    let locals = prompt(1, 2);
    let held = engine.save_held(&locals).await?;
    let slots = engine.allocate(2).await?;
    let [first, second] = &identities(&locals)[..] else { panic!("two") };
    let block = |slot, identity: &pb::BlockIdentity, checksum| pb::CommitBlock {
        slot,
        identity: Some(*identity),
        checksum,
        priority: 0,
    };
    let request = pb::CommitRequest {
        session_id: engine.session(),
        blocks: vec![
            block(slots[0], first, Some(1)),
            block(15, second, None),
            block(slots[1], second, None),
        ],
    };
    let blocks = engine.client.commit(request).await?.into_inner().blocks;
    assert_eq!(blocks[0].outcome(), pb::CommitOutcome::ChecksumMismatch);
    assert!(blocks[0].error.contains("checksum is 0000000000000001"), "{}", blocks[0].error);
    assert_eq!(blocks[1].outcome(), pb::CommitOutcome::LeaseOver);
    let duplicates = [pb::CommitOutcome::Duplicate, pb::CommitOutcome::Existing];
    assert!(duplicates.contains(&blocks[2].outcome()), "{:?}", blocks[2]);
    let request = pb::AbortRequest { session_id: engine.session(), slots };
    let aborted = engine.client.abort(request).await?.into_inner().aborted;
    assert_eq!(aborted, 1, "the first one is leased still");
    engine.release(&held).await?;
    timeout(PATIENCE, engine.end()).await.context("an end")??;
    place.stop().await;
    Ok(())
}
