use super::*;
use kvasir_proto::convert::Role;
use kvasir_proto::types::WorkerId;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

fn run(arguments: &[&str]) -> Result<Action<Config>, ConfigError> {
    read(["indexer-server"].iter().chain(arguments).map(OsString::from))
}

fn refusal(arguments: &[&str]) -> String {
    run(arguments).expect_err("bad configuration").to_string()
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(text.as_bytes()).expect("write it");
    file
}

fn with_file(text: &str, arguments: &[&str]) -> Result<Action<Config>, ConfigError> {
    let file = file(text);
    let path = file.path().to_str().expect("a path in UTF-8");
    run(&[&["--config", path], arguments].concat())
}

fn printed(action: Result<Action<Config>, ConfigError>) -> String {
    match action {
        Ok(Action::Print(text)) => text,
        other => panic!("nothing printed: {other:?}"),
    }
}

#[test]
fn no_arguments_are_enough() {
    let Ok(Action::Run(config, _)) = run(&[]) else { panic!("the defaults are refused") };
    assert_eq!(config.grpc.listen.map(|at| at.to_string()).as_deref(), Some("127.0.0.1:50051"));
    assert_eq!(config.http.listen.to_string(), "127.0.0.1:9091");
    assert_eq!(config.log.filter, "info,kube_client=off,kube_runtime=off");
    assert_eq!(config.log.otlp_endpoint, None);
    assert_eq!(config.workers, []);
    assert_eq!(
        (config.speculation.blocks_max, config.speculation.blocks_kept),
        (1_048_576, 838_860)
    );
    assert_eq!(config.index.bytes_max, None);
}

#[test]
fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
    let text = "checkpoint-dir = \"/c\"\ncheckpoint-interval = \"7s\"\nworker-timeout = \"5m\"\nindex-shards = 2\n";
    let Ok(Action::Run(config, _)) = with_file(text, &["--worker-timeout", "8m"]) else {
        panic!("refused")
    };
    let checkpoints = config.checkpoints.as_ref().map(|at| at.interval.as_secs());
    assert_eq!((checkpoints, config.grpc.port.max_connections), (Some(7), 1_024));
    assert_eq!((config.ingest.worker_timeout.as_secs(), config.index.shards.get()), (480, 2));
    assert_eq!(config.ingest.replay_concurrency, 8);
}

#[test]
fn what_is_printed_can_be_read_again() {
    let arguments = [
        "--print-config",
        "--loss-policy=clear",
        "--max-index-bytes=1536MiB",
        "--worker",
        "id=w,model=m,block-size=16,engine=vllm,endpoint=tcp://a:1,replay=tcp://a:2,dp-rank=1,copy-mode=set,lora.7=a,lora.12=b,ttl.CPU=600s,connector-chunk.CPU=4,role=decode,model-types=chat+completions,total-kv-blocks=9000,max-num-batched-tokens=2048,label.zone=a",
    ];
    let first = printed(run(&arguments));
    assert!(first.contains("loss-policy = \"clear\""), "{first}");
    assert!(first.contains("max-index-bytes = \"1536MiB\""), "{first}");
    assert!(first.contains("[[worker]]\nid = \"w\""), "{first}");
    assert_eq!(printed(with_file(&first, &["--print-config"])), first);
}

#[test]
fn an_entry_of_the_file_may_have_what_parts_entries_of_a_flag() {
    let text =
        "[[worker]]\nid = \"a;b,c\"\nmodel = \"m\"\nblock-size = 16\n[worker.lora]\n7 = \"x,y\"\n";
    let Ok(Action::Run(config, _)) = with_file(text, &[]) else { panic!("refused") };
    assert_eq!(config.workers[0].worker.as_str(), "a;b,c");
    assert_eq!(config.workers[0].lora_names[&7], "x,y");
}

#[test]
fn what_routers_want_to_know_of_a_worker_is_passed_on() {
    let spec = "id=w,model=m,block-size=16,role=prefill,model-types=completions,total-kv-blocks=9000,max-num-batched-tokens=2048,label.zone=a";
    let Ok(Action::Run(config, _)) = run(&["--worker", spec]) else { panic!("refused") };
    let profile = &config.workers[0].profile;
    assert_eq!(profile.role, Role::Prefill);
    assert_eq!(profile.model_types.to_string(), "completions");
    assert_eq!(
        (profile.total_kv_blocks, profile.max_num_batched_tokens),
        (Some(9_000), Some(2_048))
    );
    assert_eq!(profile.labels.get("zone").map(String::as_str), Some("a"));
}

#[test]
fn a_worker_reads_pools() {
    let spec = "id=w,model=m,block-size=16,pools=b+a";
    let Ok(Action::Run(config, _)) = run(&["--worker", spec]) else { panic!("refused") };
    let pools: Vec<_> = config.workers[0].pools.iter().map(WorkerId::as_str).collect();
    assert_eq!(pools, ["a", "b"]);
    let twice = "id=w,model=m,block-size=16,pools=a+a";
    let refused = refusal(&["--worker", twice]);
    assert!(refused.contains("(w).pools: pool_ids[1] repeats a"), "{refused}");
}

#[test]
fn help_has_an_example_and_the_defaults() {
    let help = printed(run(&["--help"]));
    let (_, example) = help.split_once("Example:\n  indexer-server ").expect("an example");
    let arguments: Vec<_> = example.split_whitespace().collect();
    let Ok(Action::Run(config, _)) = run(&arguments) else { panic!("{arguments:?} are refused") };
    assert_eq!(config.workers.len(), 1);
    let words: Vec<_> = help.split_whitespace().collect();
    let line = words.join(" ");
    assert!(line.contains("[env: KVASIR_LISTEN=] [default: 127.0.0.1:50051]"), "{help}");
}

#[test]
fn bytes_may_be_written_with_a_unit_or_plainly() {
    let limit = |action: Result<Action<Config>, ConfigError>| match action {
        Ok(Action::Run(config, _)) => config.index.bytes_max,
        other => panic!("refused: {other:?}"),
    };
    assert_eq!(limit(run(&["--max-index-bytes=8GiB"])), Some(8 << 30));
    assert_eq!(limit(run(&["--max-index-bytes=8GB"])), Some(8_000_000_000));
    assert_eq!(limit(run(&["--max-index-bytes=1048576"])), Some(1 << 20));
    assert_eq!(limit(with_file("max-index-bytes = \"64MiB\"", &[])), Some(64 << 20));
    assert_eq!(limit(with_file("max-index-bytes = 67108864", &[])), Some(64 << 20));
}

#[test]
fn targets_need_no_scheme() {
    let Ok(Action::Run(config, _)) = run(&["--siblings=a:1,http://b:2/", "--otlp-endpoint=c:4317"])
    else {
        panic!("refused")
    };
    assert_eq!(config.siblings, ["http://a:1", "http://b:2"]);
    assert_eq!(config.log.otlp_endpoint.as_deref(), Some("http://c:4317"));
}

#[test]
fn every_refusal_names_the_option() {
    let check = |arguments: &[&str], expected: &str| {
        let refusal = refusal(arguments);
        assert!(refusal.contains(expected), "{arguments:?}: {refusal}");
    };
    check(&["--listen", "nowhere"], "--listen");
    check(&["--timing", "degraded-ttl=10"], "degraded-ttl: \"10\" is not a duration");
    check(&["--timing", "degraded-ttl=0s"], "timing: degraded-ttl: is 0s, must be longer");
    check(&["--loss-policy", "maybe"], "\"maybe\" is not one of keep, clear");
    check(&["--log-format", "xml"], "\"xml\" is not one of text, json");
    check(&["--no-such-flag"], "--no-such-flag");
    check(&["--limits", "in-flight=0"], "limits: in-flight: is 0, must be 1 to");
    check(&["--index-shards", "0"], "index-shards: is 0, must be 1 to 64, or auto");
    check(
        &["--index-shards", "many"],
        "\"many\" is neither a number (invalid digit found in string) nor auto",
    );
    check(&["--index-shards", "65"], "index-shards: is 65, must be 1 to 64, or auto");
    check(&["--max-index-bytes", "8G"], "\"8G\" is not a number of bytes: write 8GiB, 8GB or");
    check(&["--max-index-bytes", "1000KiB"], "max-index-bytes: is 1000KiB, must be 1MiB or more");
    check(
        &["--max-index-bytes", "3MiB", "--index-shards", "4"],
        "max-index-bytes: is 3MiB, must be 4MiB or more: 1MiB a shard, of which there are 4",
    );
    check(&["--speculative-blocks", "max=9"], "speculative-blocks: max: is 9, must be 65536 to");
    check(
        &["--speculative-blocks", "keep-ratio=1.1"],
        "speculative-blocks: keep-ratio: is 1.1, must be 0 to 1",
    );
    check(
        &["--speculative-blocks", "keep-ratio=NaN"],
        "speculative-blocks: keep-ratio: is NaN, must be 0 to 1",
    );
    check(&["--tenant-share", "0"], "tenant-share: is 0, must be 0.001 to 1");
    check(&["--tenant-share", "2"], "tenant-share: is 2, must be 0.001 to 1");
    check(&["--drain-timeout", "0s"], "drain-timeout: is 0s, must be longer");
    check(&["--otlp-endpoint", "host"], "otlp-endpoint: \"host\" must be host:port, http://host");
    check(
        &["--otlp-endpoint", "https://a:1"],
        "otlp-endpoint: \"https://a:1\": spans are exported without TLS only",
    );
    check(&["--http-listen", "127.0.0.1:50051"], "http-listen: must differ from listen");
    check(&["--siblings", "a:1,host"], "siblings: \"host\" must be host:port, http://host:port");
    check(&["--siblings", "http://a:1,a:1"], "siblings: \"http://a:1\" is given twice");
    let many = vec!["http://a:1"; 17].join(",");
    check(&["--siblings", &many], "siblings: names 17 servers, the limit is 16");
    check(&["--config", "/no/such/file.toml"], "config file /no/such/file.toml");
}

#[test]
fn connections_have_an_age_and_rates_are_checked() {
    let rate = "--tenant-queries-per-second";
    let why = "tenant-queries-per-second: is 0 queries per second, must be 1 to 1000000";
    let refusal = refusal(&[rate, "0"]);
    assert!(refusal.contains(why), "{refusal}");
    let Ok(Action::Run(config, _)) = run(&[rate, "5"]) else { panic!("refused") };
    assert_eq!(config.grpc.guard.connection_age, Some(Duration::from_secs(1_800)));
}

#[test]
fn options_of_the_last_release_keep_their_effect() {
    let arguments = [
        "--degraded-ttl=1s",
        "--pool-source-timeout=2s",
        "--probe-interval=3s",
        "--nats-url=nats://a:1",
        "--nats-stream-age=4s",
        "--nats-stream-bytes=5MiB",
        "--snapshot-threshold=6",
        "--speculative-blocks-max=70000",
        "--speculative-keep-ratio=0.5",
        "--max-in-flight=7",
        "--max-connections=8",
        "--replay-concurrency=9",
        "--dump-concurrency=9",
        "--connection-age=off",
    ];
    let Ok(Action::Run(config, warnings)) = run(&arguments) else { panic!("refused") };
    let ingest = &config.ingest;
    let times = [ingest.degraded_ttl, ingest.pool_source_timeout, ingest.probe_interval];
    assert_eq!(times.map(|time| time.as_secs()), [1, 2, 3]);
    assert_eq!((ingest.replay_concurrency, ingest.dump_concurrency), (8, 8));
    let broker = config.broker.expect("a broker");
    assert_eq!((broker.stream.age_max.as_secs(), broker.stream.bytes_max), (4, 5 << 20));
    assert_eq!(broker.snapshot_threshold, 6);
    let speculation = config.speculation;
    assert_eq!((speculation.blocks_max, speculation.blocks_kept), (70_000, 35_000));
    let port = config.grpc.port;
    assert_eq!((port.max_in_flight, port.max_connections), (7, 8));
    assert_eq!(warnings.len(), arguments.len() - 1, "{warnings:?}");
}

#[test]
fn former_names_work_in_a_file_too() {
    let text = "max-in-flight = 7\nmax-connections = 8\n";
    let Ok(Action::Run(config, warnings)) = with_file(text, &[]) else { panic!("refused") };
    let port = config.grpc.port;
    assert_eq!((port.max_in_flight, port.max_connections), (7, 8));
    assert_eq!(warnings.len(), 2, "{warnings:?}");
}

#[test]
fn every_refusal_of_a_file_names_the_key() {
    let check = |text: &str, expected: &str| {
        let refusal = with_file(text, &[]).expect_err("a bad file").to_string();
        assert!(refusal.contains(expected), "{text}: {refusal}");
    };
    check("lissen = \"127.0.0.1:1\"", "lissen");
    check("listen = \"here\"", "listen: \"here\": invalid socket address");
    check("limits = \"in-flight=many\"", "in-flight");
    check("max-index-bytes = -1", "max-index-bytes: \"-1\" is not a number of bytes");
    check("max-index-byte = 1", "there is no such option: did you mean max-index-bytes?");
    check("listen = ", "1 | listen");
    check("max-index-bytes = \"much\"", "\"much\" is not a number of bytes");
    check("[[worker]]\nid = \"w\"\nmodel = \"m\"\nblock-size = 16\nport = 1", "port");
    check("[[worker]]\nid = \"w\"\nmodel = \"m\"", "block-size");
}

#[test]
fn every_refusal_of_a_time_to_live_names_the_key() {
    let check = |specs: &[&str], expected: &str| {
        let arguments: Vec<_> = specs.iter().flat_map(|spec| ["--worker", spec]).collect();
        let refusal = refusal(&arguments);
        assert!(refusal.contains(expected), "{specs:?}: {refusal}");
    };
    check(
        &["id=w,model=m,block-size=1,ttl.CPU=10m"],
        "worker[0] (w).ttl: needs an endpoint beside it",
    );
    check(
        &["id=w,model=m,block-size=1,endpoint=tcp://a:1,ttl.CPU=soon"],
        "(w).ttl: \"soon\" is not a duration: write 250ms",
    );
    check(
        &["id=w,model=m,block-size=1,endpoint=tcp://a:1,ttl.CPU=1ms"],
        "(w).ttl: CPU is 1ms, must be 100ms to 2592000s",
    );
    check(
        &["id=w,model=m,block-size=1,endpoint=tcp://a:1,ttl.CLOUD=10m"],
        "worker[0]: medium_ttls: \"CLOUD\" is not a medium of a worker's own memory",
    );
}

#[test]
fn every_refusal_of_a_chunk_names_the_key() {
    let check = |chunk: &str, expected: &str| {
        let refusal = refusal(&["--worker", &format!("id=w,model=m,block-size=1,{chunk}")]);
        assert!(refusal.contains(expected), "{chunk}: {refusal}");
    };
    check("connector-chunk.CPU=four", "connector-chunk.CPU: invalid digit");
    check("connector-chunk=4", "connector-chunk needs a name: write connector-chunk.NAME=VALUE");
    let range = "(w).connector-chunk: connector_chunks[0].blocks is 1, must be 2 to 256";
    check("connector-chunk.CPU=1", range);
    let medium = "worker[0]: connector_chunks: \"CLOUD\" is not a medium of a worker's own memory";
    check("connector-chunk.CLOUD=4", medium);
    check("connector-chunk.GPU=4", "connector_chunks: \"GPU\" is the engine's own memory");
    let differ = "connector_chunks: \"CPU\" and \"CPU_PINNED\" are one tier";
    check("connector-chunk.CPU=4,connector-chunk.CPU_PINNED=8", differ);
}

#[test]
fn every_refusal_of_a_worker_names_the_key() {
    let check = |specs: &[&str], expected: &str| {
        let arguments: Vec<_> = specs.iter().flat_map(|spec| ["--worker", spec]).collect();
        let refusal = refusal(&arguments);
        assert!(refusal.contains(expected), "{specs:?}: {refusal}");
    };
    check(&["w"], "\"w\" is no key=value");
    check(&["id=w,model=m,block-size=1,role=all"], "\"all\" is not one of prefill, decode, both");
    check(&["id=w,model=m,block-size=1,label.=a"], "(w).label: \"\": a key must have 1 to 256");
    for (spec, field) in [
        ("label.a=b\u{202e}", "label"),
        ("label.a\u{200b}=b", "label"),
        ("lora.7=a\u{2028}", "lora"),
        ("lora.7=a\u{7}", "lora"),
        ("endpoint=tcp://a\u{2066}:1", "endpoint"),
    ] {
        let why = format!("(w).{field}: ");
        check(&[&format!("id=w,model=m,block-size=1,{spec}")], &why);
    }
    check(&["id=w,model=m,block-size=1,label=a"], "label needs a name: write label.NAME=VALUE");
    check(&["id=w,model=m"], "block-size");
    check(&["id=w,model=m,block-size=x"], "block-size: invalid digit");
    check(&["id=w,model=m,block-size=0"], "worker[0] (w).block-size: 0 is not 1 to 65536");
    check(&["id=w,id=v,model=m,block-size=1"], "id is given twice");
    check(&["id=w,model=m,block-size=1,color=red"], "color");
    check(&["id=,model=m,block-size=1"], "worker[0] ().id: worker_id is required");
    check(&["id=w,model=,block-size=1"], "worker[0] (w).model: model is required");
    check(&["id=w,model=m,block-size=1,engine=x"], "\"x\" is not one of vllm");
    check(&["id=w,model=m,block-size=1,replay=tcp://a:1"], "(w).replay: needs an endpoint");
    check(&["id=w,model=m,block-size=1,endpoint=a:1"], "endpoints[0].endpoint");
    check(
        &["id=w,model=m,block-size=1", "id=v,model=m,block-size=2"],
        "worker[1] (v).block-size: 2 differs from the 1 of its partition",
    );
    check(&["id=w,model=m,block-size=1", "id=w,model=m,block-size=1"], "(w).endpoint");
    check(&["id=w,model=m,block-size=1,lora=a"], "lora needs a name: write lora.NAME=VALUE");
    check(&["id=w,model=m,block-size=1,lora.7=a,lora.7=b"], "lora.7 is given twice");
    check(
        &["id=w,model=m,block-size=1,lora.7=a,lora.07=b"],
        "worker[0] (w).lora: 7 is given twice",
    );
    check(
        &["id=w,model=m,block-size=1,lora.x=a"],
        "(w).lora: \"x\" is not an adapter number: write lora.7",
    );
    check(
        &["id=w,model=m,block-size=1,lora.7="],
        "(w).lora: the name of 7 has 0 bytes, it must have 1",
    );
    let many: String = (0..=1_024).map(|id| format!(",lora.{id}=a")).collect();
    let many = format!("id=w,model=m,block-size=1{many}");
    check(&[&many], "(w).lora: 1025 names are too many, the limit is 1024");
    check(
        &[
            "id=w,model=m,block-size=1,endpoint=tcp://a:1",
            "id=w,model=m,block-size=1,endpoint=tcp://a:2,engine=vllm",
        ],
        "worker[1] (w).engine: vllm here, but custom in an earlier spec",
    );
    check(
        &[
            "id=w,model=m,block-size=1,endpoint=tcp://a:1,topic=kv@",
            "id=v,model=n,block-size=2,endpoint=tcp://A:1,topic=kv@b",
        ],
        "worker: worker v (model n) cannot follow tcp://A:1: worker w (model m) follows it with topic \"kv@\"",
    );
}

#[test]
fn specs_of_one_worker_are_put_together() {
    let specs = "id=w,model=m,block-size=1,endpoint=tcp://a:1;\
                 id=w,model=m,block-size=1,endpoint=tcp://a:2,dp-rank=1;id=v,model=m,block-size=1";
    let Ok(Action::Run(config, _)) = run(&["--worker", specs]) else { panic!("refused") };
    let endpoints: Vec<_> = config.workers.iter().map(|worker| worker.endpoints.len()).collect();
    assert_eq!(endpoints, [2, 0]);
}

#[test]
fn adapters_that_have_numbers_only_are_named() {
    let names = |action: Result<Action<Config>, ConfigError>| match action {
        Ok(Action::Run(config, _)) => config.workers[0].lora_names.clone(),
        other => panic!("refused: {other:?}"),
    };
    let expected = BTreeMap::from([(7, "sql".to_owned()), (12, "chat".to_owned())]);
    let flag = "id=w,model=m,block-size=1,lora.7=sql,lora.12=chat";
    assert_eq!(names(run(&["--worker", flag])), expected);
    let worker = "[[worker]]\nid = \"w\"\nmodel = \"m\"\nblock-size = 1\n";
    let dotted = format!("{worker}lora.7 = \"sql\"\nlora.12 = \"chat\"\n");
    assert_eq!(names(with_file(&dotted, &[])), expected);
    let table = format!("{worker}[worker.lora]\n7 = \"sql\"\n12 = \"chat\"\n");
    assert_eq!(names(with_file(&table, &[])), expected);
}

/// Options of the server.
const ROWS: usize = 40;

#[test]
fn the_table_has_a_row_for_every_option() {
    let table = printed(run(&["--print-config-table"]));
    let row = "| `--listen` | `KVASIR_LISTEN` | `listen` | `127.0.0.1:50051` | Address of the port that serves clients |";
    assert!(table.contains(row), "{table}");
    assert_eq!(table.lines().count(), 2 + ROWS, "{table}");
}
