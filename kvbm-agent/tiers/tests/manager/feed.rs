//! A slow reader of events gets a new image, and reaches the same state as a fast one.

use crate::audit::entry;
use crate::world::{Faults, names, request};
use crate::world::{Sizes, bytes_of, chain, commit, config, fill, settle, storages};
use kvasir_blocks::{BlockTier, Change, SlotId};
use kvasir_tiers::manager::{EventFeed, FeedStep, KvBlockManager};
use std::collections::BTreeSet;
use std::time::Duration;

const SIZES: Sizes = Sizes { device: 4, host: 8, disk: 16 };

/// State of a reader, and the number of its last event.
#[derive(Debug, Default)]
struct Reader {
    known: BTreeSet<(u8, u64)>,
    last: u64,
    images: usize,
}

impl Reader {
    fn take(&mut self, step: FeedStep) {
        match step {
            FeedStep::Image(image) => {
                self.images += 1;
                assert!(image.watermark >= self.last, "an image of the past");
                self.last = image.watermark;
                self.known = image.registrations.iter().map(entry).collect();
            }
            FeedStep::Events(events) => {
                for event in events {
                    assert_eq!(event.number, self.last + 1, "an event was lost, or told twice");
                    self.last = event.number;
                    let is_news = match event.change {
                        Change::Register => self.known.insert(entry(&event.registration)),
                        Change::Remove => self.known.remove(&entry(&event.registration)),
                    };
                    assert!(is_news, "{event:?} contradicts what was told before");
                }
            }
        }
    }

    /// Reads until no more events arrive.
    async fn catch_up(&mut self, feed: &mut EventFeed) {
        while let Ok(step) = tokio::time::timeout(Duration::from_millis(20), feed.next()).await {
            self.take(step);
        }
    }
}

fn in_pools(manager: &KvBlockManager) -> BTreeSet<(u8, u64)> {
    let mut all = BTreeSet::new();
    for tier in [BlockTier::Device, BlockTier::Host, BlockTier::Disk] {
        let pool = manager.state().pool(tier).expect("a pool");
        let blocks = (0..16).filter_map(|slot| pool.slot_block(SlotId(slot)));
        all.extend(blocks.map(|block| (tier.index() as u8, block.identity.sequence.0)));
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_overflow_an_image_follows_and_then_events_without_a_gap() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = config(SIZES);
    config.blocks.queued_events_max = 8;
    let storages = storages(SIZES, &folder.path().join("disk"), &Faults::none());
    let manager = KvBlockManager::start(config, &storages).expect("a manager");
    let mut feed = manager.events().expect("a feed");
    let mut reader = Reader::default();
    reader.take(feed.next().await);
    assert_eq!((reader.images, reader.known.len()), (1, 0));
    for round in 0..20 {
        let session = manager.open_session("engine").expect("a session");
        let blocks = chain(round, 4);
        fill(&session, &blocks);
        session.end();
        settle(&manager).await;
        // Twelve events overflow a queue of eight.
        let before = reader.images;
        reader.catch_up(&mut feed).await;
        assert_eq!(reader.images, before + 1, "round {round}");
        assert_eq!(reader.known, in_pools(&manager), "round {round}");
        // A change that fits into the queue arrives as an event.
        let session = manager.open_session("engine").expect("a session");
        let slot = session.allocate(1, Duration::from_secs(1)).expect("a slot")[0].slot;
        reader.catch_up(&mut feed).await;
        let one = chain(1_000 + round, 1)[0];
        session.write(slot, 0, &bytes_of(one.sequence)).expect("a leased slot");
        session.commit(slot, &commit(&one)).expect("a block");
        session.end();
        settle(&manager).await;
        reader.catch_up(&mut feed).await;
        assert_eq!(reader.images, before + 1, "round {round}");
        assert_eq!(reader.known, in_pools(&manager), "round {round}");
    }
    assert_eq!(manager.metrics().blocks.events.overflows, 20);
    // A reader that leaves does not affect the next reader's stream.
    drop(feed);
    let session = manager.open_session("engine").expect("a session");
    session.onboard(&names(&chain(19, 4)), request()).await.expect("an answer");
    session.end();
    let mut feed = manager.events().expect("a feed");
    let mut next = Reader::default();
    next.catch_up(&mut feed).await;
    assert_eq!((next.images, &next.known), (1, &in_pools(&manager)));
}
