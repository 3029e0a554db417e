//! Test cases for both backends: TCP and NIXL.

use crate::place::{
    Fetching, Memory, PATIENCE, Serving, description, free_and_active, manager, prompt, save,
    verified,
};
use kvasir_process::access::Guard;
use kvasir_tiers::manager::KvBlockManager;
use kvasir_transfer::limits::{REQUEST_BLOCKS_MAX, UNTAKEN_TIMEOUT};
use kvasir_transfer::{FetchFault, NixlOptions};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const BLOCK_BYTES: usize = 3_000;

/// The backend: TCP, or NIXL with these options.
#[derive(Debug, Clone)]
pub struct Over(pub Option<NixlOptions>);

impl Over {
    pub async fn serving(&self, manager: &KvBlockManager) -> Serving {
        let blocks = description(manager.block_bytes());
        let port = (UNTAKEN_TIMEOUT, Guard::default());
        Serving::described(manager, blocks, port, self.0.as_ref()).await
    }

    pub fn fetching(&self, manager: Arc<KvBlockManager>) -> Fetching {
        let blocks = description(manager.block_bytes());
        Fetching::over(manager, blocks, self.0.as_ref())
    }
}

/// Waits until a condition holds.
pub async fn until(what: &str, is_so: impl FnMut() -> bool) {
    until_within(PATIENCE, what, is_so).await;
}

/// Slots of returned loans are free within this time, long before the timeout of the request.
pub const RETURNED: Duration = Duration::from_secs(5);

pub async fn until_within(patience: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(5)).await;
    }
}

pub async fn blocks_arrive_byte_for_byte(over: Over) {
    for (theirs, ours) in [
        (Memory::Private, Memory::Private),
        (Memory::Shared, Memory::Private),
        (Memory::Private, Memory::Shared),
        (Memory::Shared, Memory::Shared),
    ] {
        // Four requests; the last one is short.
        let blocks = prompt(1, 1_600);
        let owned = manager(theirs, BLOCK_BYTES, 1_600);
        save(&owned, &blocks);
        let owner = over.serving(&owned).await;
        let fetching = over.fetching(manager(ours, BLOCK_BYTES, 1_600));
        let fetched = fetching.fetch(owner.address, &blocks).await;
        assert_eq!((fetched.blocks.len(), fetched.stopped), (1_600, None), "{theirs:?} {ours:?}");
        assert_eq!(fetched.bytes, 1_600 * BLOCK_BYTES as u64);
        drop(fetched.blocks);
        assert_eq!(verified(&fetching.manager, &blocks), 1_600);
        // Loans are counted when they are returned.
        until("they are not counted", || owner.counters.metrics().served == 1_600).await;
        assert_eq!(fetching.counters.metrics().fetched, 1_600);
        assert_eq!(free_and_active(&owned), (0, 0), "nothing is held any more");
        owner.stop().await;
    }
}

/// Checksums of large blocks are computed on other threads.
pub async fn large_blocks_arrive_too(over: Over) {
    let blocks = prompt(1, 5);
    let bytes = 3 << 20;
    let owned = manager(Memory::Shared, bytes, 5);
    save(&owned, &blocks);
    let owner = over.serving(&owned).await;
    let fetching = over.fetching(manager(Memory::Private, bytes, 5));
    let fetched = fetching.fetch(owner.address, &blocks).await;
    assert_eq!((fetched.blocks.len(), fetched.stopped), (5, None));
    drop(fetched.blocks);
    assert_eq!(verified(&fetching.manager, &blocks), 5);
    owner.stop().await;
}

pub async fn what_an_owner_lacks_is_missing_and_a_stopped_owner_is_lost(over: Over) {
    // The owner has all blocks of the second request except its first.
    let blocks = prompt(1, 600);
    let owned = manager(Memory::Private, BLOCK_BYTES, 600);
    save(&owned, &blocks[..5]);
    save(&owned, &blocks[REQUEST_BLOCKS_MAX..]);
    let owner = over.serving(&owned).await;
    let fetching = over.fetching(manager(Memory::Private, BLOCK_BYTES, 16));
    // The connection is reused.
    for round in 0..3 {
        let fetched = fetching.fetch(owner.address, &blocks).await;
        assert_eq!((fetched.blocks.len(), fetched.stopped), (5, Some(FetchFault::Missing)));
        drop(fetched.blocks);
        assert_eq!(verified(&fetching.manager, &blocks), 5, "round {round}");
    }
    assert_eq!(fetching.counters.metrics().stopped.get("missing"), Some(&3));
    until_within(RETURNED, "what was not read is held", || free_and_active(&owned).1 == 0).await;
    // The idle connection is useless once its owner has stopped.
    let address = owner.address;
    owner.stop().await;
    let fetched = fetching.fetch(address, &blocks).await;
    assert!(matches!(fetched.stopped, Some(FetchFault::Lost(_))), "{:?}", fetched.stopped);
}

pub async fn without_room_the_rest_stays_where_it_is(over: Over) {
    let blocks = prompt(1, 8);
    let owned = manager(Memory::Private, BLOCK_BYTES, 8);
    save(&owned, &blocks);
    let owner = over.serving(&owned).await;
    let fetching = over.fetching(manager(Memory::Private, BLOCK_BYTES, 3));
    let fetched = fetching.fetch(owner.address, &blocks).await;
    assert_eq!(fetched.blocks.len(), 3);
    assert!(matches!(fetched.stopped, Some(FetchFault::NoRoom(_))), "{:?}", fetched.stopped);
    drop(fetched.blocks);
    assert_eq!(verified(&fetching.manager, &blocks), 3);
    until_within(RETURNED, "what was not read is held", || free_and_active(&owned).1 == 0).await;
    owner.stop().await;
}

/// The tests of one backend.
macro_rules! cases_over {
    ($over:expr) => {
        cases_over!(
            $over,
            blocks_arrive_byte_for_byte,
            large_blocks_arrive_too,
            what_an_owner_lacks_is_missing_and_a_stopped_owner_is_lost,
            without_room_the_rest_stays_where_it_is,
        );
    };
    ($over:expr, $($case:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                crate::cases::$case($over).await;
            }
        )*
    };
}
pub(crate) use cases_over;
