use super::*;
use crate::limits::{MESSAGE_BYTES_MAX, REQUEST_BLOCKS_MAX, VERSION};
use kvasir_blocks::BlockIdentity;
use kvasir_proto::types::LocalHash;
use proptest::prelude::*;
use std::io::IoSlice;
use tokio::runtime::Builder;

const BLOCK_BYTES: u64 = 96;
const BLOCK: [u8; 96] = [0; 96];

fn description() -> BlockDescription {
    BlockDescription {
        model: "m".to_owned(),
        hash_scheme: "s".to_owned(),
        block_size: 4,
        block_bytes: BLOCK_BYTES,
        ..Default::default()
    }
}

fn messages() -> Vec<Message> {
    let first = BlockIdentity::first(LocalHash(7));
    let second = first.next(LocalHash(8));
    let head = BlockHead {
        request: 3,
        index: 1,
        sequence: second.sequence.0,
        parent: Some(first.sequence.0),
        local: 8,
        position: 1,
        checksum: 9,
    };
    let authorization = "Bearer t".to_owned();
    let hello =
        Hello { version: VERSION, authorization, worker: "w".to_owned(), blocks: description() };
    let set = vec![1; 200];
    let blocks = description();
    let nixl = vec![2; 300];
    let welcome = Welcome { version: VERSION, worker: "w".to_owned(), set, blocks, nixl };
    let fetch = |blocks| {
        let sequences = (0..blocks).collect();
        Fetch { request: 3, epoch: 1, export: 2, timeout_ms: 25_000, sequences }
    };
    let lent = LentBlock { head: head.clone(), offset: 1 << 40 };
    let blocks = vec![lent; REQUEST_BLOCKS_MAX];
    vec![
        Message::Hello(hello),
        Message::Welcome(welcome),
        Message::Refusal(Refusal::new(RefusalCode::Denied, "no\nwords")),
        Message::Fetch(fetch(REQUEST_BLOCKS_MAX as u64)),
        Message::Block(head),
        Message::End(End { request: 3, blocks: 2, fault: Fault::Missing as i32 }),
        Message::Lend(fetch(2)),
        Message::Lent(Lent { request: 3, blocks, fault: Fault::Busy as i32 }),
        Message::Return(Return { request: 3 }),
    ]
}

/// All messages as a connection transmits them, a block with its bytes.
fn stream(messages: &[Message]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for message in messages {
        let payload = if message.kind() == Kind::Block { BLOCK_BYTES } else { 0 };
        bytes.extend(message.frame(payload));
        bytes.extend((0..=u8::MAX).cycle().zip(0..payload).map(|(byte, _)| byte));
    }
    bytes
}

/// Decodes bytes: messages until the end, or until the first error.
fn read(bytes: &[u8]) -> (Vec<Message>, Result<(), WireError>) {
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let mut reader = FrameReader::new(bytes, BLOCK_BYTES);
        let mut messages = Vec::new();
        loop {
            match reader.frame().await {
                Ok(Some(message)) => {
                    let is_block = message.kind() == Kind::Block;
                    messages.push(message);
                    let mut block = BLOCK;
                    let mut room = &mut block[..];
                    while is_block && !room.is_empty() {
                        match reader.payload(room).await {
                            Ok(count) => room = &mut room[count..],
                            Err(error) => return (messages, Err(error)),
                        }
                    }
                }
                Ok(None) => return (messages, Ok(())),
                Err(error) => return (messages, Err(error)),
            }
        }
    })
}

#[test]
fn frames_come_back_as_they_were() {
    let sent: Vec<_> = (0..40).flat_map(|_| messages()).collect();
    let (found, ended) = read(&stream(&sent));
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!(found, sent);
}

#[test]
fn who_calls_is_not_shown() {
    let shown = format!("{:?}", messages());
    assert!(!shown.contains("Bearer"), "{shown}");
}

#[test]
fn slices_are_written_whole() {
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    let parts = [&b""[..], b"ab", b"", b"cde"];
    let mut found = Vec::new();
    let mut slices = parts.map(IoSlice::new);
    runtime.block_on(write_all(&mut found, &mut slices)).expect("room");
    assert_eq!(found, b"abcde");
}

/// Each invalid field is refused by its name.
#[test]
fn what_cannot_be_is_refused() {
    let refused = |message: Message, text: &str| {
        let (_, ended) = read(&stream(&[message]));
        let error = ended.expect_err(text).to_string();
        assert!(error.contains(text), "{text:?} in {error}");
    };
    let [hello, welcome, refusal, fetch, block, _, _, lent, _] =
        <[Message; 9]>::try_from(messages()).expect("nine");
    let (Message::Hello(hello), Message::Welcome(welcome)) = (hello, welcome) else { panic!() };
    let (Message::Refusal(refusal), Message::Fetch(fetch)) = (refusal, fetch) else { panic!() };
    let (Message::Block(block), Message::Lent(mut lent)) = (block, lent) else { panic!() };
    let long = "x".repeat(300);
    let other = BlockDescription { model: String::new(), ..description() };
    refused(Message::Hello(Hello { blocks: other, ..hello.clone() }), "model is required");
    let other = BlockDescription { dtype: long.clone(), ..description() };
    refused(Message::Hello(Hello { blocks: other, ..hello.clone() }), "dtype must have 256 bytes");
    let other = BlockDescription { block_bytes: 0, ..description() };
    refused(Message::Hello(Hello { blocks: other, ..hello.clone() }), "block_bytes is 0");
    let authorization = "x".repeat(9_000);
    refused(Message::Hello(Hello { authorization, ..hello }), "authorization must have");
    let other = Welcome { nixl: vec![0; (16 << 10) + 1], ..welcome.clone() };
    refused(Message::Welcome(other), "nixl must have 16384 bytes");
    refused(Message::Welcome(Welcome { worker: long, ..welcome }), "worker must have");
    let text = "x".repeat(2_000);
    refused(Message::Refusal(Refusal { text, ..refusal }), "text must have 1024 bytes");
    let of = |sequences| Message::Fetch(Fetch { sequences, ..fetch.clone() });
    refused(of(Vec::new()), "sequences has 0 entries");
    refused(of((0..513).collect()), "sequences has 513 entries");
    refused(of(vec![1, 1]), "sequences names a block twice");
    refused(Message::Fetch(Fetch { timeout_ms: 0, ..fetch.clone() }), "timeout_ms is 0");
    refused(Message::Fetch(Fetch { timeout_ms: 25_001, ..fetch.clone() }), "timeout_ms is 25001");
    lent.blocks[1].head.local = 1;
    refused(Message::Lent(lent.clone()), "sequence does not follow");
    let small = LentBlock { head: BlockHead::default(), offset: 0 };
    lent.blocks = vec![small; REQUEST_BLOCKS_MAX + 1];
    refused(Message::Lent(lent), "blocks has 513 entries");
    refused(Message::Lend(Fetch { timeout_ms: 0, ..fetch.clone() }), "timeout_ms is 0");
    refused(Message::Block(BlockHead { local: 1, ..block }), "sequence does not follow");
    refused(Message::Block(BlockHead { position: 0, ..block }), "position is 0");
    refused(Message::Block(BlockHead { position: 65_536, ..block }), "position is 65536");
    let long = Header { kind: Kind::End, message_bytes: MESSAGE_BYTES_MAX + 1, payload_bytes: 0 };
    let error = read(&long.encode()).1.expect_err("too long").to_string();
    assert!(error.contains("the limit is 65536"), "{error}");
    let other = Header { kind: Kind::Block, message_bytes: 0, payload_bytes: u64::MAX };
    let error = read(&other.encode()).1.expect_err("too much").to_string();
    assert!(error.contains("must be 96"), "{error}");
}

proptest! {
    /// However bytes are damaged in transit: messages before the damage are right, then there is an error or an end,
    /// and never a panic.
    #[test]
    fn changed_bytes_are_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let sent = messages();
        let mut bytes = stream(&sent);
        let end = cut.index(bytes.len() + 1);
        bytes.truncate(end);
        let mut first = bytes.len();
        for (at, value) in changes {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                if bytes[at] != value {
                    bytes[at] = value;
                    first = first.min(at);
                }
            }
        }
        let (found, ended) = read(&bytes);
        let mut whole = 0;
        for (index, message) in sent.iter().enumerate() {
            whole += stream(std::slice::from_ref(message)).len();
            if whole <= first {
                prop_assert_eq!(found.get(index), Some(message));
            }
        }
        if let Err(error) = ended {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        drop(read(&bytes));
        for kind in Kind::ALL {
            let header = Header { kind, message_bytes: bytes.len(), payload_bytes: 0 };
            let mut frame = header.encode().to_vec();
            frame.extend(&bytes);
            drop(read(&frame));
        }
    }
}
