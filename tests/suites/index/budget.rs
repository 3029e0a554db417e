//! A partition under a byte budget, as a server keeps it: the budget holds after every step, and answers
//! only ever lose by it.

use crate::sharded::Sharded;
use crate::shedding::{Play, Shedding, Tried};
use indexer_server::partitions::Relief;
use kvasir_index::Shed;
use kvasir_tests::script::{Script, ScriptRng};
use rand::{Rng, SeedableRng};
use std::sync::Arc;

/// Seeds for each number of shards.
const SEEDS: u64 = 1_500;

/// Limits tried, as percents of what the script uses without one.
const LIMIT_PERCENTS: [usize; 3] = [75, 90, 105];

/// Makes room as if every shard had been written; then the bytes in use are at most seven eighths of
/// the limit, or nothing is left that can be shed.
fn keep(sharded: &Sharded, relief: &mut Relief, limit: usize) -> Result<Shed, String> {
    let mut all = Shed::default();
    for shard in sharded.shards() {
        let shed = relief.make_room(shard, |_| ());
        all.pairs += shed.pairs;
        all.parked += shed.parked;
    }
    let budget = sharded.partitions().budget();
    let bytes = budget.bytes();
    let counted = sharded.bytes();
    if bytes.allocated != counted {
        return Err(format!("{bytes:?} are counted of {counted}"));
    }
    let is_empty = !sharded.shards().iter().any(|shard| shard.is_sheddable());
    if bytes.in_use() > limit - limit / 8 && !is_empty {
        return Err(format!("{bytes:?} are too many: {limit} is the limit"));
    }
    Ok(all)
}

/// Most bytes that a script has in use.
fn unlimited(script: &Script, shards: usize) -> Result<usize, String> {
    let mut play = Play::new(script, Sharded::new(shards, script.limits));
    let mut most = 0;
    for step in &script.steps {
        play.step(step)?;
        most = most.max(play.live.partitions().budget().bytes().in_use());
    }
    Ok(most)
}

fn play(script: &Script, shards: usize) -> Result<Tried, String> {
    let mut rng = ScriptRng::seed_from_u64(!script.seed);
    let percents = LIMIT_PERCENTS[rng.random_range(0..LIMIT_PERCENTS.len())];
    let limit = unlimited(script, shards)? / 100 * percents;
    let sharded = Sharded::limited(shards, Some(limit), script.limits);
    let mut relief = Relief::new(Arc::clone(sharded.partitions()));
    let mut play = Play::new(script, sharded);
    for step in &script.steps {
        let message = |message| format!("after #{}: {message}", step.id);
        play.step(step)?;
        let mut kept = Ok(Shed::default());
        play.shed(|sharded| {
            kept = keep(sharded, &mut relief, limit);
            kept.clone().unwrap_or_default()
        })
        .map_err(message)?;
        kept.map_err(message)?;
        play.check(&mut rng).map_err(message)?;
    }
    play.end()?;
    let left = play.live.partitions().budget().bytes();
    if left.allocated > 0 || left.free > 0 {
        return Err(format!("{left:?} are counted when all is gone"));
    }
    Ok(play.tried)
}

#[test]
fn a_budget_holds_over_any_number_of_shards_and_only_takes_from_answers() {
    for shards in [1, 2, 7] {
        let mut all = Tried::default();
        for seed in 0..SEEDS {
            let script = Script::generate(seed);
            match play(&script, shards) {
                Ok(tried) => all.merge(&tried),
                Err(message) => panic!("{shards} shards, seed {seed}: {message}\n{script}"),
            }
        }
        println!("{shards} shards, seeds 0..{SEEDS}: {all:?}");
        all.assert_above(SEEDS / 10);
    }
}
