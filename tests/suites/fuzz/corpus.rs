//! The committed inputs, and how the first of them are made.

use crate::targets;
use anyhow::{Context, Result};
use indexer_server::snapshot::{SnapshotConfig, SnapshotStore};
use kvasir_feed::disk::{self, DiskConfig, SourceChange};
use kvasir_feed::journal::{Journal, JournalConfig};
use kvasir_proto::pb::{self, dump_worker_response, local_dump_response};
use kvasir_proto::types::{BlockName, Incarnation, KvEvent, LocalHash, StoredBlock, Tier};
use prost::Message;
use rocksdb::{DB, IteratorMode};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Payloads of each file of golden frames that are taken, spread over the file.
const GOLDEN_OF_FILE: usize = 6;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn folder(name: &str) -> PathBuf {
    root().join("data/fuzz").join(name)
}

/// The corpus of a target: names of files with what they have, in order.
pub fn read(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = folder(name);
    if std::env::var_os("KVASIR_REGENERATE").is_some() {
        write(name, &folder).expect("a corpus");
    }
    let files =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut corpus: Vec<_> = files
        .map(|file| {
            let path = file.expect("a file").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, fs::read(&path).expect("readable"))
        })
        .collect();
    corpus.sort();
    corpus
}

fn write(name: &str, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let made = match name {
        "frames" => frames(),
        "events" => events()?,
        "messages" => messages(),
        "checkpoint" => checkpoint()?,
        "dump" => dump(),
        "journal" => journal()?,
        // Texts, written by hand.
        _ => Vec::new(),
    };
    for (number, input) in made.into_iter().enumerate() {
        fs::write(folder.join(format!("made-{number:02}")), input)?;
    }
    Ok(())
}

fn frames() -> Vec<Vec<u8>> {
    // A topic, a sequence number and a payload; then a frame with a length of eight bytes.
    let message =
        [&b"\x01\x05topic\x01\x08\0\0\0\0\0\0\0\x07\0\x03abc"[..], b"\x02\0\0\0\0\0\0\0\x02xy"];
    let message = message.concat();
    let greeting = [&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1][..], b"NULL", &[0; 48]].concat();
    let ready = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB";
    let whole = [&[0, 5][..], &greeting, ready, &message].concat();
    let with = |choice: u8, piece: u8| [&[choice, piece][..], &message, &message].concat();
    vec![whole, with(2, 1), with(2, 255), with(3, 16)]
}

fn events() -> Result<Vec<Vec<u8>>> {
    let mut inputs = Vec::new();
    for (engine, file) in ["vllm", "sglang", "trtllm"].into_iter().enumerate() {
        let path = root().join(format!("../engine/tests/data/golden-frames/{file}.jsonl"));
        let text = fs::read_to_string(path)?;
        let payloads: Vec<_> = text.lines().filter_map(payload).collect();
        let apart = (payloads.len() / GOLDEN_OF_FILE).max(1);
        let some = payloads.into_iter().step_by(apart);
        inputs.extend(some.map(|payload| [&[engine as u8][..], &payload].concat()));
    }
    Ok(inputs)
}

fn payload(line: &str) -> Option<Vec<u8>> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let digits = line["payload_hex"].as_str()?;
    let byte = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn hello() -> pb::PublishHello {
    pb::PublishHello {
        worker_id: "w".to_owned(),
        model: "m".to_owned(),
        source: "agent".to_owned(),
        block_size: 4,
        incarnation: vec![7; 16].into(),
        first_sequence: Some(3),
        ..pb::PublishHello::default()
    }
}

fn registration() -> pb::RegisterWorkerRequest {
    let label = |key: &str| pb::Label { key: key.to_owned(), value: "a".to_owned() };
    pb::RegisterWorkerRequest {
        worker_id: "w".to_owned(),
        model: "m".to_owned(),
        block_size: 4,
        engine: pb::Engine::Vllm.into(),
        lease_ms: 60_000,
        lora_names: vec![pb::LoraName { id: 3, name: "adapter".to_owned() }],
        profile: Some(pb::WorkerProfile {
            labels: vec![label("rack"), label("zone")],
            total_kv_blocks: Some(1_000),
            ..pb::WorkerProfile::default()
        }),
        ..pb::RegisterWorkerRequest::default()
    }
}

fn messages() -> Vec<Vec<u8>> {
    let input = |choice: u8, message: Vec<u8>| [&[choice][..], &message].concat();
    let find = pb::FindMatchesRequest {
        model: "m".to_owned(),
        token_ids: (0..64).collect(),
        ..pb::FindMatchesRequest::default()
    };
    let heartbeat = pb::PublishHeartbeat { head_sequence: Some(9), ..Default::default() };
    let broker = pb::BrokerMessage {
        worker: Some(registration()),
        source: "agent".to_owned(),
        incarnation: vec![7; 16].into(),
        first_sequence: 3,
        content: Some(pb::broker_message::Content::Heartbeat(heartbeat)),
    };
    let publish = pb::PublishEventsRequest {
        message: Some(pb::publish_events_request::Message::Hello(hello())),
    };
    let load = pb::WorkerLoad {
        model: "m".to_owned(),
        worker_id: "w".to_owned(),
        num_requests_waiting: Some(3),
        ..pb::WorkerLoad::default()
    };
    let reused = pb::ReusedTokens { prompt_tokens: 48, expected_tokens: 32, cached_tokens: 16 };
    let report = pb::ReportReuseRequest {
        model: "m".to_owned(),
        worker_id: "w".to_owned(),
        requests: vec![reused],
        ..Default::default()
    };
    vec![
        input(0, find.encode_to_vec()),
        input(1, registration().encode_to_vec()),
        input(2, broker.encode_to_vec()),
        input(3, publish.encode_to_vec()),
        input(6, pb::ListWorkersRequest::default().encode_to_vec()),
        input(8, load.encode_to_vec()),
        input(9, hello().encode_to_vec()),
        input(10, report.encode_to_vec()),
    ]
}

/// What a recorded version left on disk.
fn checkpoint() -> Result<Vec<Vec<u8>>> {
    const HEADER_BYTES: usize = 12;
    const END_BYTES: usize = 17;
    let scratch = tempfile::tempdir()?;
    let recorded = root().join("data/upgrades/4ecc52d/checkpoint/db");
    let database = scratch.path().join("db");
    fs::create_dir_all(&database)?;
    for file in fs::read_dir(recorded)? {
        let file = file?;
        fs::copy(file.path(), database.join(file.file_name()))?;
    }
    let config = SnapshotConfig::new(scratch.path().to_owned());
    let mut store = SnapshotStore::open(&config)?.store;
    let mut export = store.export()?;
    let mut bytes = Vec::new();
    while let Some(chunk) = export.next_chunk()? {
        bytes.extend(chunk);
    }
    let records = bytes.get(HEADER_BYTES..bytes.len() - END_BYTES).context("an export")?;
    Ok(vec![records.to_vec()])
}

/// Each with its length before it.
fn parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend((part.len() as u16).to_le_bytes());
        bytes.extend(part);
    }
    bytes
}

fn record(name: u64) -> pb::BlockRecord {
    pb::BlockRecord {
        name,
        parent_name: name.checked_sub(1).filter(|parent| *parent > 0),
        local_hash: Some(name * 7),
        device_copies: 1,
        ..pb::BlockRecord::default()
    }
}

fn dump() -> Vec<Vec<u8>> {
    let chunk = pb::DumpChunk { dp_rank: 0, records: (1..20).map(record).collect() };
    let end = pb::DumpEnd {
        source: "agent".to_owned(),
        copy_mode: pb::CopyMode::Set.into(),
        state: pb::WorkerState::Exact.into(),
        records: 19,
        dp_ranks: vec![0],
        ..pb::DumpEnd::default()
    };
    let salted =
        pb::NameMeaning { name: 1, seed: 5, matchable: true, host_copies: 1, ..Default::default() };
    let meanings = pb::DumpMeanings { names: vec![salted], ..Default::default() };
    let sibling = [
        dump_worker_response::Part::Chunk(chunk.clone()),
        dump_worker_response::Part::Meanings(meanings),
        dump_worker_response::Part::End(end),
    ];
    let sibling = sibling.map(|part| pb::DumpWorkerResponse { part: Some(part) }.encode_to_vec());
    let agent = pb::LocalDumpResponse { part: Some(local_dump_response::Part::Chunk(chunk)) };
    let agent = agent.encode_to_vec();
    let with = |choice: u8, messages: Vec<u8>| [&[choice][..], &messages].concat();
    vec![
        with(0, parts(sibling.iter().map(Vec::as_slice))),
        with(1, parts([agent.as_slice(), &agent])),
    ]
}

fn journal() -> Result<Vec<Vec<u8>>> {
    let scratch = tempfile::tempdir()?;
    let config: DiskConfig = targets::journal_config(scratch.path().to_owned());
    let journal = JournalConfig::DEFAULT;
    let disk = disk::open(&config, journal, (Incarnation(7), 3))?.disk;
    let mut memory = Journal::new(Incarnation(7), 3, journal);
    let block = |at: u64| StoredBlock { name: BlockName(at), local: LocalHash(at * 7) };
    let stored =
        KvEvent::Stored { parent: None, tier: Tier::Device, blocks: (1..12).map(block).collect() };
    let removed = KvEvent::Removed { tier: Tier::Device, names: vec![BlockName(11)] };
    for (rank, event) in [(0, stored.clone()), (0, removed), (1, stored)] {
        let mut batches = Vec::new();
        memory.append_each(rank, vec![event], |batch| batches.push(Arc::clone(batch)))?;
        disk.write(&batches, SourceChange::None);
    }
    drop(disk);
    let database = DB::open_default(scratch.path().join("db"))?;
    let entries: Result<Vec<_>, _> = database.iterator(IteratorMode::Start).collect();
    let entries = entries?;
    Ok(vec![parts(entries.iter().flat_map(|(key, value)| [&**key, &**value]))])
}
