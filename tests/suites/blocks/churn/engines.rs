//! Engines that go on whatever becomes of their agents. Only wrong bytes end them.

use super::fleet::{DECODE, Doors, PREFILL};
use crate::engine::{Engine, hashes, over_socket};
use crate::place::{LOOK, MODEL};
use crate::rank::Rank;
use anyhow::{Context, Result};
use kvasir_proto::pb;
use kvasir_sim::client;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::Error as TransportError;

/// Longest turn of an engine; who was killed meanwhile may never answer.
const TURN_MAX: Duration = Duration::from_secs(15);

/// What engines have done.
#[derive(Debug, Default)]
pub struct Done {
    pub saved: AtomicU64,
    pub found: AtomicU64,
    pub fetched: AtomicU64,
    pub loaded: AtomicU64,
    /// Turns that failed because somebody was killed.
    pub cut_off: AtomicU64,
}

impl Done {
    pub fn all(&self) -> [u64; 5] {
        [&self.saved, &self.found, &self.fetched, &self.loaded, &self.cut_off]
            .map(|count| count.load(Ordering::Relaxed))
    }
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

/// Whether a turn failed because a process was gone. Wrong bytes and wrong answers are other errors.
fn is_cut_off(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<Status>() || cause.is::<TransportError>() || cause.is::<std::io::Error>()
    })
}

/// Opens a session with a rank's agent.
pub async fn open(socket: &Path, rank: Rank) -> Result<Engine> {
    let contents = Arc::new(move |sequence| rank.bytes_of(sequence));
    Engine::with(over_socket(socket).await?, contents).await
}

/// One of an engine's sessions, which is opened again when its agent was killed.
struct Session(Option<Engine>);

impl Session {
    async fn engine(&mut self, socket: &Path, rank: Rank) -> Result<&mut Engine> {
        if self.0.is_none() {
            self.0 = Some(open(socket, rank).await?);
        }
        self.0.as_mut().context("a session")
    }

    /// Goes on after a turn: the session is kept if the turn went well.
    async fn after(
        &mut self,
        turn: Result<Result<()>, tokio::time::error::Elapsed>,
        done: &Done,
    ) -> Result<()> {
        match turn {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) if !is_cut_off(&error) => return Err(error),
            Ok(Err(_)) | Err(_) => {}
        }
        self.0 = None;
        add(&done.cut_off, 1);
        sleep(LOOK).await;
        Ok(())
    }
}

/// What an engine does.
#[derive(Debug, Clone, Copy)]
pub enum Role {
    /// Saves prompts.
    Prefill,
    /// Finds prompts through the index, fetches them from who has them, and reads them.
    Decode,
}

/// An engine.
pub struct Player {
    pub role: Role,
    pub doors: Doors,
    pub prompts: Arc<[Vec<u64>]>,
    pub done: Arc<Done>,
    pub random: ChaCha8Rng,
}

impl Player {
    /// Works until it is over, or bytes are wrong.
    pub async fn work(mut self, over: CancellationToken) -> Result<()> {
        let mut session = Session(None);
        while !over.is_cancelled() {
            let locals = self.prompts.choose(&mut self.random).context("a prompt")?.clone();
            let turn = async {
                match self.role {
                    Role::Prefill => self.save(&mut session, &locals).await,
                    Role::Decode => self.fetch(&mut session, &locals).await,
                }
            };
            let ended = timeout(TURN_MAX, turn).await;
            session.after(ended, &self.done).await?;
        }
        Ok(())
    }

    async fn save(&self, session: &mut Session, locals: &[u64]) -> Result<()> {
        session.engine(&self.doors.prefill, PREFILL).await?.save(locals).await?;
        add(&self.done.saved, 1);
        Ok(())
    }

    async fn fetch(&self, session: &mut Session, locals: &[u64]) -> Result<()> {
        let Some((peer, blocks)) = self.holder(locals).await? else { return Ok(()) };
        add(&self.done.found, u64::from(blocks));
        let engine = session.engine(&self.doors.decode, DECODE).await?;
        let request = pb::FetchRequest {
            session_id: engine.session(),
            peers: vec![peer],
            sequence_hashes: hashes(&locals[..blocks as usize]),
            timeout_ms: Some(5_000),
        };
        let fetched = engine.client.fetch(request).await?.into_inner();
        add(&self.done.fetched, fetched.fetched_blocks.into());
        let loaded = engine.load(locals).await?;
        add(&self.done.loaded, loaded as u64);
        Ok(())
    }

    /// The address of the other worker that has most of a prompt, and how many leading blocks it has.
    async fn holder(&self, locals: &[u64]) -> Result<Option<(String, u32)>> {
        let mut index = client::connect(self.doors.index).await?;
        let request = pb::FindMatchesRequest {
            model: MODEL.to_owned(),
            local_hashes: locals.to_vec(),
            ..Default::default()
        };
        let answer = index.find_matches(request).await?.into_inner();
        let Some(best) = answer.matches.into_iter().find(|at| at.worker_id != DECODE.worker())
        else {
            return Ok(None);
        };
        let workers = client::list_workers(&mut index, pb::ListWorkersRequest::default()).await?;
        let registrations = workers.into_iter().filter_map(|worker| worker.registration);
        let holder = registrations.into_iter().find(|at| at.worker_id == best.worker_id);
        let labels = holder.and_then(|at| at.profile).map(|profile| profile.labels);
        let label = labels.into_iter().flatten().find(|label| label.key == "blocks-peer");
        Ok(label.map(|label| (label.value, best.matched_blocks)))
    }
}
