//! Compares the disk tier with sequential I/O of the same bytes and flags.

use crate::blocks::{arena, block, count, readers, speed};
use crate::{Args, line};
use anyhow::{Context, Result, ensure};
use kvasir_memory::Arena;
use kvasir_tiers::disk::{DiskConfig, Way};
use kvasir_tiers::{
    DiskStorage, Executor, ExecutorConfig, Fingerprint, Job, Place, Sealed, Storage,
};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// Blocks per batch.
const BATCH: usize = 16;

/// A plain file of the same size, opened with the same flags.
fn plain(path: &Path, bytes: u64, way: &Way) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    if *way == Way::Direct {
        options.custom_flags(i32::try_from(OFlags::DIRECT.bits())?);
    }
    let file = options.open(path)?;
    fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
    Ok(file)
}

fn store(executor: &Executor, near: &Arc<Arena>, block_bytes: usize) -> Result<Vec<Sealed>> {
    let mut sources = readers(near)?.into_iter().peekable();
    let mut sealed = Vec::new();
    let mut under_way = std::collections::VecDeque::new();
    while sources.peek().is_some() || !under_way.is_empty() {
        if sources.peek().is_some() && under_way.len() < 2 {
            let batch = sources.by_ref().take(BATCH).map(|source| Job::Store {
                place: Place::Slot(source.slot()),
                block: block(source.slot(), block_bytes),
                source,
            });
            under_way.push_back(executor.submit(batch.collect())?);
        } else if let Some(transfer) = under_way.pop_front() {
            for done in transfer.wait() {
                sealed.push(done.result?.context("a block")?);
            }
        }
    }
    Ok(sealed)
}

fn load(executor: &Executor, back: &Arc<Arena>, sealed: &[Sealed]) -> Result<()> {
    let mut blocks = (0..).zip(sealed).peekable();
    let mut under_way = std::collections::VecDeque::new();
    while blocks.peek().is_some() || !under_way.is_empty() {
        if blocks.peek().is_some() && under_way.len() < 2 {
            let batch: Result<Vec<Job>> = blocks
                .by_ref()
                .take(BATCH)
                .map(|(slot, block)| {
                    let target = back.write(slot)?;
                    Ok(Job::Load { place: Place::Slot(slot), block: *block, target })
                })
                .collect();
            under_way.push_back(executor.submit(batch?)?);
        } else if let Some(transfer) = under_way.pop_front() {
            for done in transfer.wait() {
                done.result?;
            }
        }
    }
    Ok(())
}

pub fn measure(args: &Args, block_bytes: usize) -> Result<()> {
    let blocks = count(args.mib, block_bytes)?;
    let near = arena(block_bytes, blocks)?;
    let back = arena(block_bytes, blocks)?;
    let folder = tempfile::tempdir_in(&args.folder)?;
    let config = DiskConfig {
        path: folder.path().join("tier"),
        block_bytes,
        slots: blocks,
        fingerprint: Fingerprint([0; 32]),
        description: "bench".to_owned(),
        direct: true,
    };
    let storage = Arc::new(DiskStorage::open(&config, 1)?.storage);
    let way = storage.way().clone();
    let bytes = block_bytes * usize::try_from(blocks)?;
    let file = plain(&folder.path().join("plain"), u64::try_from(bytes)?, &way)?;
    let executor = ExecutorConfig {
        name: "disk".to_owned(),
        threads: args.threads,
        waiting_blocks_max: 4 * BATCH,
        waiting_bytes_max: 1 << 30,
    };
    let executor = Executor::start(Arc::clone(&storage) as Arc<dyn Storage>, executor)?;
    println!("disk: {way:?}, {} threads, batches of {BATCH}", args.threads);
    let mut writes = vec![];
    let mut stores = vec![];
    let mut reads = vec![];
    let mut loads = vec![];
    for _ in 0..=args.trials {
        writes.push(speed(bytes, || {
            let mut at = 0;
            for source in readers(&near)? {
                file.write_all_at(source.as_slice().context("memory")?, at)?;
                at += u64::try_from(block_bytes)?;
            }
            Ok(())
        })?);
        let mut sealed = Vec::new();
        stores.push(speed(bytes, || {
            sealed = store(&executor, &near, block_bytes)?;
            Ok(())
        })?);
        reads.push(speed(bytes, || {
            for slot in 0..blocks {
                let mut target = back.write(slot)?;
                let at = u64::from(slot) * u64::try_from(block_bytes)?;
                file.read_exact_at(target.as_mut_slice().context("memory")?, at)?;
            }
            Ok(())
        })?);
        ensure!(sealed.len() == usize::try_from(blocks)?, "blocks were lost");
        loads.push(speed(bytes, || load(&executor, &back, &sealed))?);
    }
    let [writes, stores, reads, loads] = [writes, stores, reads, loads].map(|at| at[1..].to_vec());
    line("sequential writes", &writes, None);
    line("disk tier: store, with checksum and record", &stores, Some(&writes));
    line("sequential reads", &reads, None);
    line("disk tier: load, verified", &loads, Some(&reads));
    executor.stop();
    Ok(())
}
