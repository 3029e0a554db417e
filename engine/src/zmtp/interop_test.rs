//! Tests both sockets against the independent implementation of the `zeromq` crate.

use bytes::Bytes;
use tokio::time::timeout;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::test_peer::{TEST_TIMEOUT, patient, poll_once};
use super::{Attach, DealerSocket, Endpoint, LinkError, Message, SubEvent, SubSocket};

const ANY: &str = "tcp://127.0.0.1:0";
const TOPIC: &[u8] = b"kv@";

fn published(topic: &[u8], seq: u64) -> ZmqMessage {
    let frames = [
        Bytes::copy_from_slice(topic),
        Bytes::copy_from_slice(&seq.to_be_bytes()),
        Bytes::from(vec![7; 1 + usize::try_from(seq).unwrap() % 1000]),
    ];
    ZmqMessage::try_from(frames.to_vec()).unwrap()
}

/// The sequence number of a message from `published`.
fn check_published(message: &Message) -> u64 {
    let [topic, seq, payload] = message.as_slice() else { panic!("{message:?}") };
    assert_eq!(topic, TOPIC);
    let seq = u64::from_be_bytes(seq.as_ref().try_into().unwrap());
    assert_eq!(payload.len() as u64, 1 + seq % 1000);
    seq
}

/// Publishes until the subscription has reached the publisher, then checks that no message is missing.
async fn check_stream(publisher: &mut PubSocket, sub: &mut SubSocket) {
    let mut seq = 0;
    let first = loop {
        publisher.send(published(TOPIC, seq)).await.unwrap();
        seq += 1;
        match poll_once(sub).await {
            Some(SubEvent::Message(message)) => break check_published(&message),
            Some(event) => panic!("{event:?}"),
            None => {}
        }
    };
    for expected in first + 1..first + 2000 {
        while expected >= seq {
            publisher.send(published(b"other", seq)).await.unwrap();
            publisher.send(published(TOPIC, seq)).await.unwrap();
            seq += 1;
        }
        let event = sub.next().await;
        let SubEvent::Message(message) = event else { panic!("{event:?}") };
        assert_eq!(check_published(&message), expected);
    }
}

#[tokio::test]
async fn a_publisher_we_connect_to() {
    let test = async {
        let mut publisher = PubSocket::new();
        let address = publisher.bind(ANY).await.unwrap().to_string();
        let endpoint: Endpoint = address.parse().unwrap();
        let mut sub =
            SubSocket::new(Attach::Connect(endpoint), Bytes::from_static(TOPIC), patient());
        let event = sub.next().await;
        assert!(matches!(event, SubEvent::Connected), "{event:?}");
        check_stream(&mut publisher, &mut sub).await;
        drop(publisher);
        let ended = loop {
            match sub.next().await {
                SubEvent::Disconnected(error) => break error,
                SubEvent::Message(_) => {}
                SubEvent::Connected => panic!("connected twice"),
            }
        };
        assert!(matches!(ended, LinkError::Closed | LinkError::Io(_)), "{ended}");
    };
    timeout(TEST_TIMEOUT, test).await.unwrap();
}

#[tokio::test]
async fn a_publisher_that_connects_to_us() {
    let test = async {
        let attach = Attach::Bind(ANY.parse().unwrap());
        let mut sub = SubSocket::new(attach, Bytes::from_static(TOPIC), patient());
        let address = loop {
            assert!(poll_once(&mut sub).await.is_none());
            if let Some(address) = sub.local_addr() {
                break format!("tcp://{address}");
            }
        };
        let mut publisher = PubSocket::new();
        // Each handshake completes only together with the other.
        let connected = tokio::join!(sub.next(), publisher.connect(&address));
        assert!(matches!(connected, (SubEvent::Connected, Ok(()))), "{connected:?}");
        check_stream(&mut publisher, &mut sub).await;
    };
    timeout(TEST_TIMEOUT, test).await.unwrap();
}

#[tokio::test]
async fn a_router_that_replays() {
    const REPLIES: u64 = 3000;
    let test = async {
        let mut router = RouterSocket::new();
        let endpoint: Endpoint = router.bind(ANY).await.unwrap().to_string().parse().unwrap();
        let mut dealer = DealerSocket::connect(&endpoint, &patient()).await.unwrap();
        dealer.send(&[b"", &7_u64.to_be_bytes()]).await.unwrap();
        let request = router.recv().await.unwrap().into_vec();
        assert_eq!(request[1..], [Bytes::new(), Bytes::copy_from_slice(&7_u64.to_be_bytes())]);
        let serve = async {
            for seq in 0..REPLIES {
                let mut reply = published(TOPIC, seq);
                reply.push_front(Bytes::new());
                reply.push_front(request[0].clone());
                router.send(reply).await.unwrap();
            }
        };
        let receive = async {
            for seq in 0..REPLIES {
                let mut reply = dealer.recv().await.unwrap();
                assert!(reply.remove(0).is_empty());
                assert_eq!(check_published(&reply), seq);
            }
        };
        tokio::join!(serve, receive);
        drop(router);
        assert!(dealer.recv().await.is_err());
    };
    timeout(TEST_TIMEOUT, test).await.unwrap();
}
