//! Shared adapter for the indexes of `dynamo-kv-router`: queries, events, and the writer thread.

use super::Ask;
use crate::workload::{Action, Content, Operation, Script};
use dynamo_kv_router::SyncIndexer;
use dynamo_kv_router::indexer::WorkerTask;
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent,
};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use tokio::sync::oneshot;

/// Events, by value: the index takes and frees them.
pub(crate) type Events = Vec<RouterEvent>;

/// An index of that crate.
pub(crate) struct Asked<I>(pub(crate) I);

impl<I: SyncIndexer> Ask for Asked<I> {
    const CALLS: &'static [&'static str] = &["find_matches"];
    type Hash = LocalBlockHash;
    type Answer = OverlapScores;

    fn hash(local: u64) -> LocalBlockHash {
        LocalBlockHash(local)
    }

    fn ask(&self, _call: usize, query: &[LocalBlockHash], answer: &mut OverlapScores) {
        *answer = self.0.find_matches(query, false);
    }

    fn scores(&self, _call: usize, answer: &OverlapScores) -> Vec<(u32, u32)> {
        answer.scores.iter().map(|(worker, &blocks)| (worker.worker_id as u32, blocks)).collect()
    }
}

pub(crate) fn prepare(content: &Content, script: &Script, part: &[Operation], into: &mut Events) {
    into.clear();
    let name = |block: u32| ExternalSequenceBlockHash(content.name(block));
    into.extend(part.iter().zip(1..).map(|(operation, event_id)| {
        let data = match operation.action {
            Action::Store { parent, blocks } => KvCacheEventData::Stored(KvCacheStoreData {
                parent_hash: parent.map(name),
                start_position: None,
                blocks: content
                    .blocks(blocks)
                    .map(|(name, local)| KvCacheStoredBlockData {
                        block_hash: ExternalSequenceBlockHash(name),
                        tokens_hash: LocalBlockHash(local),
                        mm_extra_info: None,
                    })
                    .collect(),
            }),
            Action::Remove { listed } => KvCacheEventData::Removed(KvCacheRemoveData {
                block_hashes: script.removed(listed).iter().copied().map(name).collect(),
            }),
        };
        let event = KvCacheEvent { event_id, data, dp_rank: 0 };
        RouterEvent::new(u64::from(operation.worker), event)
    }));
}

/// The thread that writes an index: the crate's own loop, fed through a channel. The crate has no other public
/// interface for writes.
pub(crate) struct Lane {
    tasks: flume::Sender<WorkerTask>,
    thread: Option<JoinHandle<()>>,
}

impl Lane {
    pub(crate) fn start<I: SyncIndexer>(index: &Arc<Asked<I>>) -> Self {
        let (tasks, received) = flume::unbounded();
        let index = Arc::clone(index);
        let run = move || index.0.worker(received, None).expect("the lane runs");
        let thread = thread::Builder::new().name("lane".to_owned()).spawn(run);
        Self { tasks, thread: Some(thread.expect("a thread")) }
    }

    fn send(&self, task: WorkerTask) {
        self.tasks.send(task).unwrap_or_else(|_| panic!("the lane ended"));
    }

    fn call<T>(&self, task: impl FnOnce(oneshot::Sender<T>) -> WorkerTask) -> T {
        let (reply, answer) = oneshot::channel();
        self.send(task(reply));
        answer.blocking_recv().expect("the lane answers")
    }

    /// Applies all events and waits until the last one is applied.
    pub(crate) fn apply(&self, events: &mut Events) {
        events.drain(..).for_each(|event| self.send(WorkerTask::Event(event)));
        self.call(WorkerTask::Flush);
    }

    pub(crate) fn pairs(&self) -> usize {
        self.call(WorkerTask::Stats).block_count()
    }

    /// Performs the periodic maintenance of the crate's thread pool.
    pub(crate) fn clean(&self) {
        self.send(WorkerTask::CleanupStaleChildren);
        self.call(WorkerTask::Flush);
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.send(WorkerTask::Terminate);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the lane ends well");
        }
    }
}
