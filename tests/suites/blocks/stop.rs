use crate::engine::{Engine, over_socket, prompt};
use crate::place::{PATIENCE, Place};
use crate::saved::until_equal;
use anyhow::{Context, Result};
use tokio::time::timeout;

/// Told to stop, an agent ends its sessions and copies what waits before it goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_agent_has_offloaded_what_waited() -> Result<()> {
    let mut place = Place::start(&["--deregister=false"]).await?;
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    let prompts = [prompt(1, 8), prompt(2, 8)];
    for locals in &prompts {
        engine.save(locals).await?;
    }
    place.agent.stop().await;
    let end = timeout(PATIENCE, engine.stream.message()).await.context("the stream goes on")?;
    assert_eq!(end.expect_err("it ends").code(), tonic::Code::Unavailable);
    assert!(!place.socket().exists(), "the socket goes with the agent");
    place.begin_again().await?;
    let mut engine = Engine::open(over_socket(&place.socket()).await?).await?;
    for locals in &prompts {
        assert_eq!(engine.load(locals).await?, 8);
    }
    until_equal(&place, &mut engine, &prompts).await?;
    place.stop().await;
    Ok(())
}
