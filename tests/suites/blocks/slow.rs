use crate::engine::{Engine, over_socket, prompt};
use crate::place::Place;
use crate::saved::until_equal;
use anyhow::Result;
use rustix::process::Signal;
use std::time::Duration;
use tokio::time::timeout;

const PROMPTS: u64 = 300;
/// Far longer than that takes, and far shorter than anybody waits for an index.
const LIMIT: Duration = Duration::from_secs(25);

/// An index that takes nothing: engines save and load as ever, and it is equal once it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_that_stands_still_delays_no_engine() -> Result<()> {
    let place = Place::start(&[]).await?;
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    engine.save(&prompt(1, 4)).await?;
    place.until_found(&prompt(1, 4), 4, 4).await?;
    place.index.signal(Signal::STOP)?;
    let prompts: Vec<_> = (1..=PROMPTS).map(|number| prompt(number, 4)).collect();
    let working = async {
        for locals in &prompts {
            engine.save(locals).await?;
            // Copies under way hold slots, of which there are few.
            engine.until_copied().await?;
            engine.load(locals).await?;
        }
        anyhow::Ok(())
    };
    let worked = timeout(LIMIT, working).await;
    place.index.signal(Signal::CONT)?;
    worked.expect("engines do not wait for the index")?;
    until_equal(&place, &mut engine, &prompts).await?;
    place.stop().await;
    Ok(())
}
