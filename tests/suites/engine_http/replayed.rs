//! All events of an engine, replayed and counted, are what it holds.

use crate::drive::{SEEDS, drive, engines, settled};
use crate::harness::PATIENCE;
use bytes::Bytes;
use std::collections::BTreeMap;
use tokio::time::timeout;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

/// The copies of each name by all batches from the first on, and how many batches there were.
async fn replayed(endpoint: &str) -> (BTreeMap<u64, u32>, u64) {
    let mut dealer = DealerSocket::new();
    dealer.connect(endpoint).await.expect("a replay socket");
    let request = vec![Bytes::new(), 0_u64.to_be_bytes().to_vec().into()];
    dealer.send(ZmqMessage::try_from(request).expect("frames")).await.expect("a request");
    let mut copies = BTreeMap::new();
    let mut batches = 0;
    loop {
        let message = timeout(PATIENCE, dealer.recv()).await.expect("a reply in time");
        let message = message.expect("a reply");
        // A delimiter, the topic, the number and the payload.
        let number = message.get(2).expect("a number").as_ref();
        let number = u64::from_be_bytes(number.try_into().expect("eight bytes"));
        if number == u64::MAX {
            return (copies, batches);
        }
        assert_eq!(number, batches, "batches are contiguous");
        batches += 1;
        let mut payload = message.get(3).expect("a payload").as_ref();
        let batch = rmpv::decode::read_value(&mut payload).expect("MessagePack");
        for event in batch[1].as_array().expect("events") {
            count(&mut copies, event);
        }
    }
}

fn count(copies: &mut BTreeMap<u64, u32>, event: &rmpv::Value) {
    for name in event["block_hashes"].as_array().expect("names") {
        let name = name.as_u64().expect("a number");
        match event["type"].as_str().expect("a type") {
            "BlockStored" => *copies.entry(name).or_default() += 1,
            "BlockRemoved" => {
                let held = copies.get_mut(&name).expect("a stored block");
                *held -= 1;
                if *held == 0 {
                    copies.remove(&name);
                }
            }
            other => panic!("unknown event {other}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counted_events_are_what_engines_hold_after_requests_that_end_early() {
    for seed in SEEDS {
        let engines = engines().await;
        drive(&engines, seed).await;
        for engine in &engines {
            let truth = settled(engine).await;
            let (copies, batches) = replayed(&engine.engine().endpoints().replay).await;
            assert_eq!(Some(batches), truth.last_sequence.map(|last| last + 1));
            assert_eq!(copies, truth.copies);
        }
        for engine in engines {
            engine.stop().await.expect("an end");
        }
    }
}
