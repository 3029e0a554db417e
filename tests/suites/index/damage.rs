//! Images come from a disk, and may say anything.

use crate::live::{Live, limits};
use crate::reborn::restore;
use crate::shedding::Play;
use kvasir_index::{ChangeLimits, Limits};
use kvasir_proto::types::WorkerId;
use kvasir_tests::image_store::{Loss, StoredImages};
use kvasir_tests::script::{Script, ScriptRng};
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

const SEEDS: u64 = 3_000;

/// What became of damaged workers.
#[derive(Debug, Default)]
struct Tried {
    refused: u64,
    damaged: u64,
    unplaced: u64,
    dropped: u64,
}

/// Images of all workers of a script, of several moments.
fn images(
    script: &Script,
    rng: &mut ScriptRng,
) -> Result<BTreeMap<WorkerId, StoredImages>, String> {
    let noted = Limits { changes: Some(ChangeLimits::default()), ..limits(script.limits) };
    let mut play = Play::new(script, Live::with(noted));
    let mut kept: BTreeMap<WorkerId, StoredImages> = BTreeMap::new();
    for (number, step) in script.steps.iter().enumerate() {
        play.step(step)?;
        if number + 1 < script.steps.len() && rng.random_bool(0.9) {
            continue;
        }
        let index = play.live.index();
        let workers: Vec<_> = index.workers().map(|worker| worker.id().clone()).collect();
        for worker in workers {
            let mut cut = index.begin_cut(&worker, false).map_err(|error| error.to_string())?;
            while !index.cut_step(&mut cut, 100).done {}
            kept.entry(worker).or_default().merge(cut.finish().0, Loss::Nothing);
        }
    }
    Ok(kept)
}

fn play(script: &Script, tried: &mut Tried) -> Result<(), String> {
    let mut rng = ScriptRng::seed_from_u64(!script.seed);
    let kept = images(script, &mut rng)?;
    let mut live = Live::new(script.limits);
    let index = live.index();
    for (worker, mut kept) in kept {
        for _ in 0..rng.random_range(1..6) {
            kept.damage(&mut rng);
        }
        let restored =
            kept.saved(&worker, &mut rng).and_then(|saved| restore(index, saved, &mut rng));
        match restored {
            Ok(restored) => {
                tried.unplaced += restored.unplaced;
                tried.dropped += restored.dropped;
                tried.damaged += u64::from(restored.unplaced + restored.dropped > 0);
            }
            Err(message) if message.contains("are damaged") => tried.refused += 1,
            Err(message) => return Err(message),
        }
        index.validate()?;
    }
    // What came of it is an index like any other, and goes like one.
    let sources: Vec<_> =
        index.workers().flat_map(|worker| worker.sources()).map(|(id, ..)| id).collect();
    for source in sources {
        while !index.clear_source(source, None, 10).map_err(|error| error.to_string())?.done {}
        index.remove_source(source).map_err(|error| error.to_string())?;
        index.validate()?;
    }
    match index.bytes() {
        0 => Ok(()),
        bytes => Err(format!("{bytes} bytes when all is gone")),
    }
}

#[test]
fn damaged_images_are_refused_or_counted() {
    let mut tried = Tried::default();
    for seed in 0..SEEDS {
        let script = Script::generate(seed);
        if let Err(message) = play(&script, &mut tried) {
            panic!("seed {seed}: {message}\n{script}");
        }
    }
    println!("{tried:?}");
    let Tried { refused, damaged, unplaced, dropped } = tried;
    for (what, count) in
        [("refused", refused), ("damaged", damaged), ("unplaced", unplaced), ("dropped", dropped)]
    {
        assert!(count > SEEDS / 20, "{what}: {count}");
    }
}
