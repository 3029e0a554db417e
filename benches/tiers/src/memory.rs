//! Compares the memory tier with memcpy, and measures checksums alone.

use crate::blocks::{arena, block, count, readers, speed};
use crate::{Args, line};
use anyhow::{Context, Result};
use kvasir_tiers::{Cancel, Checksum, HostStorage, Place, Sealed, Storage};
use std::hint::black_box;

pub fn measure(args: &Args, block_bytes: usize) -> Result<()> {
    let blocks = count(args.mib, block_bytes)?;
    let near = arena(block_bytes, blocks)?;
    let tier = arena(block_bytes, blocks)?;
    let back = arena(block_bytes, blocks)?;
    let host = HostStorage::new(tier.clone());
    let cancel = Cancel::new();
    let bytes = block_bytes * usize::try_from(blocks)?;
    let mut copies = vec![];
    let mut stores = vec![];
    let mut loads = vec![];
    let mut sums = vec![];
    // The first round is a warm-up; its results do not count.
    for _ in 0..=args.trials {
        let sources = readers(&near)?;
        copies.push(speed(bytes, || {
            for source in &sources {
                let mut target = tier.write(source.slot())?;
                let to = target.as_mut_slice().context("memory")?;
                to.copy_from_slice(source.as_slice().context("memory")?);
                black_box(to);
            }
            Ok(())
        })?);
        let mut sealed: Vec<Sealed> = Vec::new();
        stores.push(speed(bytes, || {
            for source in &sources {
                let block = block(source.slot(), block_bytes);
                let place = Place::Slot(source.slot());
                sealed.push(host.store(place, &block, source, &cancel)?);
            }
            Ok(())
        })?);
        loads.push(speed(bytes, || {
            for (slot, block) in (0..).zip(&sealed) {
                host.load(Place::Slot(slot), block, &mut back.write(slot)?, &cancel)?;
            }
            Ok(())
        })?);
        sums.push(speed(bytes, || {
            for source in &sources {
                black_box(Checksum::of(1, source.as_slice().context("memory")?));
            }
            Ok(())
        })?);
    }
    let [copies, stores, loads, sums] = [copies, stores, loads, sums].map(|at| at[1..].to_vec());
    line("memcpy", &copies, None);
    line("memory tier: store, with checksum", &stores, Some(&copies));
    line("memory tier: load, verified", &loads, Some(&copies));
    line("checksum by itself", &sums, Some(&copies));
    Ok(())
}
