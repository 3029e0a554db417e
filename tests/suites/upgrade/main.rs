//! What older versions wrote to disk is read by this one, and survives being written again.
//!
//! `tests/data/upgrades` has a folder for each recorded version. `KVASIR_RECORD=NAME` records one more: run it
//! on a checkout of the version that is to be recorded, before a change of what is on disk.

#![allow(clippy::disallowed_methods, reason = "tests read their switches from the environment")]

mod checkpoint;
mod folder;
mod journal;
mod rolling;

use anyhow::Result;
use rolling::{Fleet, Kind, Version};
use std::env;

/// Name of the version that is to be recorded first, if one is.
fn recorded_now() -> Option<String> {
    env::var("KVASIR_RECORD").ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoints_of_older_versions_are_read() -> Result<()> {
    if let Some(version) = recorded_now() {
        checkpoint::record(&folder::of(&version)).await?;
    }
    for version in folder::versions()? {
        println!("{}", version.display());
        checkpoint::check(&version).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn journals_of_older_versions_are_read() -> Result<()> {
    if let Some(version) = recorded_now() {
        journal::record(&folder::of(&version)).await?;
    }
    for version in folder::versions()? {
        println!("{}", version.display());
        journal::check(&version).await?;
    }
    Ok(())
}

/// Upgrades a fleet under load, and takes the upgrade back in the opposite order. `KVASIR_OLDER_PROGRAMS` names a folder
/// with programs of the version `KVASIR_OLDER_VERSION`; without it, this version is restarted twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_while_versions_are_mixed() -> Result<()> {
    let older = Version::older()?;
    let this = Version::this();
    let mut fleet = Fleet::start(&older).await?;
    let up = fleet.roll(&this, [Kind::Index, Kind::Agent, Kind::Gateway]).await?;
    fleet.check().await?;
    let down = fleet.roll(&older, [Kind::Gateway, Kind::Agent, Kind::Index]).await?;
    fleet.check().await?;
    println!("{older:?}: {up} requests during the upgrade, {down} while it was taken back");
    fleet.stop().await
}
