//! Measures how soon a disk tier is usable after a restart, and the cost of verifying all of it.

use crate::Args;
use crate::blocks::{arena, block};
use anyhow::{Result, ensure};
use kvasir_tiers::disk::DiskConfig;
use kvasir_tiers::{Cancel, DiskStorage, Fingerprint, Place, Storage};
use tokio::time::Instant;

const BYTES: usize = 64 << 10;

pub fn measure(args: &Args) -> Result<()> {
    let folder = tempfile::tempdir_in(&args.folder)?;
    let memory = arena(BYTES, 2)?;
    let config = DiskConfig {
        path: folder.path().join("tier"),
        block_bytes: BYTES,
        slots: args.restart_blocks,
        fingerprint: Fingerprint([0; 32]),
        description: "bench".to_owned(),
        direct: true,
    };
    let cancel = Cancel::new();
    let storage = DiskStorage::open(&config, 1)?.storage;
    for slot in 0..args.restart_blocks {
        storage.store(Place::Slot(slot), &block(slot, BYTES), &memory.read(0)?, &cancel)?;
    }
    drop(storage);
    let mut opens = Vec::new();
    for _ in 0..args.trials {
        let start = Instant::now();
        let opened = DiskStorage::open(&config, 1)?;
        opens.push(start.elapsed().as_secs_f64() * 1e3);
        ensure!(opened.blocks.len() == usize::try_from(args.restart_blocks)?, "blocks were lost");
    }
    opens.sort_by(f64::total_cmp);
    let opened = DiskStorage::open(&config, 1)?;
    let start = Instant::now();
    for found in &opened.blocks {
        let mut target = memory.write(1)?;
        opened.storage.load(Place::Slot(found.slot), &found.block, &mut target, &cancel)?;
    }
    println!(
        "\nrestart with {} blocks of 64 KiB: usable after {:.1} ms (median), all verified {:.2} s later",
        args.restart_blocks,
        opens[opens.len() / 2],
        start.elapsed().as_secs_f64()
    );
    Ok(())
}
