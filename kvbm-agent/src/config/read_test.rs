use super::*;
use crate::agent::AgentConfig;
use crate::load::scrape::ScrapedEngine;
use kvasir_proto::broker::Delivery;
use kvasir_proto::convert::{ImageTokens, Role};
use kvasir_proto::types::{EngineFacts, WorkerId};
use std::time::Duration;

const FEW: [&str; 4] =
    ["--worker-id=w", "--model=m", "--block-size=16", "--indexers=http://127.0.0.1:50051"];

fn run(arguments: &[&str]) -> Result<Action<Config>, ConfigError> {
    read([PROGRAM].iter().chain(arguments).map(OsString::from))
}

fn config(arguments: &[&str]) -> Config {
    match run(&[&FEW, arguments].concat()) {
        Ok(Action::Run(config, _)) => *config,
        other => panic!("{arguments:?}: {other:?}"),
    }
}

fn refusal(arguments: &[&str]) -> String {
    run(&[&FEW, arguments].concat()).expect_err("refused").to_string()
}

#[test]
fn a_few_options_are_enough() {
    let Config { agent, http, .. } =
        config(&["--engine=vllm", "--source=endpoint=tcp://a:1,replay=tcp://a:2"]);
    assert_eq!(http.listen.to_string(), "127.0.0.1:9092");
    let registration = agent.registration.expect("the agent registers the worker");
    assert_eq!(registration.lease.map(|lease| lease.as_secs()), Some(60));
    assert_eq!(registration.local_indexer, None, "the port is known once it is open");
    let [relay] = &agent.sources.relays[..] else { panic!("one relay") };
    assert_eq!((&*relay.endpoint, relay.replay.as_deref()), ("tcp://a:1", Some("tcp://a:2")));
    assert!(agent.sources.hub.batching.is_off(), "each batch is published as it comes");
    let again = config(&[]);
    assert_ne!(
        agent.source.incarnation, again.agent.source.incarnation,
        "each incarnation is another"
    );
}

#[test]
fn adapters_that_have_numbers_only_are_named() {
    let Config { agent, .. } =
        config(&["--lora=7=sql,12=chat", "--source=endpoint=tcp://a:1;endpoint=tcp://a:2"]);
    let names = |agent: &AgentConfig| {
        let registration = agent.registration.as_ref().expect("the agent registers the worker");
        registration.lora_names.clone()
    };
    let expected = [(7, "sql".to_owned()), (12, "chat".to_owned())];
    assert_eq!(names(&agent), expected.clone().into());
    for relay in &agent.sources.relays {
        assert_eq!(relay.lora_names, expected.clone().into());
    }
    assert_eq!(agent.sources.relays.len(), 2);
}

#[test]
fn chunks_of_connectors_are_read_and_registered() {
    let Config { agent, .. } =
        config(&["--connector-chunk=cpu=4,disk=16", "--source=endpoint=tcp://a:1"]);
    let expected = [("CPU".to_owned(), 4), ("DISK".to_owned(), 16)];
    assert_eq!(agent.sources.relays[0].connector_chunks, expected);
    let registration = agent.registration.expect("the agent registers the worker");
    assert_eq!(registration.connector_chunks, expected.into());
}

#[test]
fn media_that_never_remove_have_a_time_to_live() {
    let Config { agent, .. } =
        config(&["--medium-ttl=cpu=10m,disk=500ms", "--source=endpoint=tcp://a:1"]);
    let expected = [
        ("CPU".to_owned(), Duration::from_secs(600)),
        ("DISK".to_owned(), Duration::from_millis(500)),
    ];
    assert_eq!(agent.sources.relays[0].medium_ttls, expected);
    let kept = ["--medium-ttl=CPU=1m", "--source=endpoint=tcp://a:1", "--journal-dir=x"];
    let why = "medium-ttl: does not go with journal-dir";
    let refused = refusal(&kept);
    assert!(refused.contains(why), "{refused}");
}

#[test]
fn help_shows_the_default_of_every_option_that_has_one() {
    let Ok(Action::Print(help)) = run(&["--help"]) else { panic!("no help") };
    let Ok(Action::Print(table)) = run(&["--print-config-table"]) else { panic!("no table") };
    let mut defaults = 0;
    for row in table.lines().skip(2) {
        let columns: Vec<_> =
            row.split('|').map(|column| column.trim().trim_matches('`')).collect();
        let [_, flag, _, _, default, ..] = columns[..] else { panic!("no row: {row}") };
        if !default.is_empty() {
            defaults += 1;
            let (_, of_flag) = help.split_once(&format!("\n      {flag} ")).expect(flag);
            let of_flag = of_flag.split("\n      --").next().unwrap_or_default();
            let of_flag = of_flag.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(of_flag.contains(&format!("[default: {default}]")), "{flag}: {of_flag}");
        }
    }
    assert!(defaults > 15, "{defaults} of {table}");
}

#[test]
fn targets_need_no_scheme() {
    let few = ["--indexers=a:1,http://b:2/", "--advertise=c:3", "--otlp-endpoint=d:4"];
    let arguments = [&FEW[..3], &few].concat();
    let Ok(Action::Run(config, _)) = run(&arguments) else { panic!("refused") };
    assert_eq!(config.agent.indexers, ["http://a:1", "http://b:2"]);
    let registration = config.agent.registration.expect("the agent registers the worker");
    assert_eq!(registration.local_indexer.as_deref(), Some("http://c:3"));
    assert_eq!(config.log.otlp_endpoint.as_deref(), Some("http://d:4"));
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    for (left_out, expected) in [
        (0, "worker-id: is required: nothing is assumed of the engine"),
        (1, "model: is required: nothing is assumed of the engine"),
        (2, "block-size: is required: nothing is assumed of the engine"),
        (
            3,
            "indexers: is empty, so the agent has no index to publish to: set indexers, nats-url or zmq",
        ),
    ] {
        let mut few = FEW.to_vec();
        few.remove(left_out);
        assert_eq!(run(&few).expect_err("refused").to_string(), expected);
    }
}

#[test]
fn nats_has_a_server_by_default() {
    let mut few = FEW.to_vec();
    few.remove(3);
    few.push("--nats-delivery=jetstream");
    let Ok(Action::Run(config, _)) = run(&few) else { panic!("refused") };
    assert!(config.agent.broker.is_some_and(|at| at.delivery == Delivery::Jetstream));
}

#[test]
fn times_to_live_that_are_wrong_are_named() {
    for (argument, expected) in [
        (
            "--medium-ttl=CPU=1m",
            "medium-ttl: needs a source: publishers on the gRPC port remove blocks themselves",
        ),
        ("--connector-chunk=CPU", "connector-chunk: \"CPU\" is no medium=blocks such as CPU=4"),
        ("--connector-chunk=CPU=x", "connector-chunk: \"CPU=x\" is no medium=blocks such as CPU=4"),
        (
            "--connector-chunk=CPU=1",
            "connector-chunk: connector_chunks[0].blocks is 1, must be 2 to 256",
        ),
        (
            "--connector-chunk=CLOUD=4",
            "connector-chunk: \"CLOUD\" is not a medium of a worker's own memory: use one that \
             connectors announce, such as CPU or DISK",
        ),
        ("--medium-ttl=CPU", "medium-ttl: \"CPU\" is no medium=time"),
        (
            "--medium-ttl=CPU=soon",
            "medium-ttl: \"soon\" is not a duration: write 250ms, 10s, 5m, 2h or 30d",
        ),
        ("--medium-ttl=CPU=1ms", "medium-ttl: CPU is 1ms, must be 100ms to 2592000s"),
        (
            "--medium-ttl=CLOUD=1m",
            "medium-ttl: \"CLOUD\" is no medium of a worker's own memory, such as CPU or DISK",
        ),
    ] {
        assert_eq!(refusal(&[argument]), expected, "{argument}");
    }
}

#[test]
fn values_that_are_wrong_are_named() {
    for (argument, expected) in [
        (
            "--indexers=a:1,x",
            "indexers: \"x\" must be host:port, http://host:port or https://host:port, such as 10.0.0.2:50051",
        ),
        (
            "--advertise=x",
            "advertise: \"x\" must be host:port, http://host:port or https://host:port, such as 10.0.0.2:50051",
        ),
        (
            "--otlp-endpoint=https://x:1",
            "otlp-endpoint: \"https://x:1\": spans are exported without TLS only, write http://",
        ),
        ("--label=zone", "label: \"zone\" is no key=value"),
        ("--label=zone=a,zone=b", "label[1].key: repeats zone: each may be given once"),
        ("--lora=sql", "lora: \"sql\" is no number=name"),
        ("--lora=x=sql", "lora: \"x=sql\" is no number=name"),
        ("--lora=7=", "lora[0].name: is required"),
        ("--lora=7=a,7=b", "lora[1].id: repeats 7: each may be given once"),
        ("--lease=10ms", "lease: is 10ms, must be 1s to 3600s"),
        ("--lease=0s", "lease: is 0s, must be 1s to 3600s"),
        (
            "--zmq=listen=127.0.0.1:5557",
            "zmq replay-listen: is required with listen: subscribers request missed messages from its socket",
        ),
        (
            "--zmq=replay-listen=127.0.0.1:5558",
            "zmq listen: is required with replay-listen: set both keys, or remove replay-listen",
        ),
        (
            "--metrics-url=http://127.0.0.1:8000",
            "metrics-url: engine is custom: only metrics of vllm and sglang are known",
        ),
        ("--batch-interval=11s", "batch-interval: is 11s, the limit is 10s"),
        (
            "--journal-bytes=64KiB",
            "journal-bytes: is 64KiB, must be 512KiB or more, which is the maximum size of one batch",
        ),
        (
            "--nats-url=http://a:4222",
            "nats-url: a server must start with nats:// or tls://: write nats://host:port, several with commas between",
        ),
        ("--http-listen=127.0.0.1:50052", "http-listen: must differ from listen"),
    ] {
        assert_eq!(refusal(&[argument]), expected, "{argument}");
    }
}

#[test]
fn a_source_that_cannot_be_is_named_once() {
    for (argument, expected) in [
        (
            "--source=endpoint=a:1",
            "source endpoint: \"a:1\" must start with tcp://, for example tcp://10.0.0.7:5557",
        ),
        (
            "--indexers=http://a:1,http://b:1,a:1",
            "indexers: \"http://a:1\" is given twice: remove one",
        ),
        (
            "--source=endpoint=tcp://a:1,replay=tcp://*:2",
            "source replay: cannot connect to tcp://*:2: name the publisher's host and port, or listen instead",
        ),
        (
            "--source=endpoint=tcp://a:1;endpoint=tcp://a:1,dp-rank=1",
            "source endpoint: \"tcp://a:1\" is given twice: each engine is one source",
        ),
    ] {
        assert_eq!(refusal(&[argument]), expected, "{argument}");
    }
}

#[test]
fn an_index_on_another_machine_must_reach_the_agent() {
    assert_eq!(config(&[]).warnings, [""; 0]);
    let far = "--indexers=http://127.0.0.1:1,http://index:2";
    let [warning] = &config(&[far]).warnings[..] else { panic!("no warning") };
    let expected =
        "listen: 127.0.0.1:50052 is reached from this machine only, and http://index:2 asks there";
    assert!(warning.starts_with(expected), "{warning}");
    let [warning] = &config(&[far, "--advertise=http://[::1]:3"]).warnings[..] else {
        panic!("no warning")
    };
    assert!(warning.starts_with("advertise: http://[::1]:3 is reached from this"), "{warning}");
    for enough in
        [&["--advertise=http://10.0.0.7:3"][..], &["--listen=10.0.0.7:3", "--insecure=true"]]
    {
        assert_eq!(config(&[&[far], enough].concat()).warnings, [""; 0], "{enough:?}");
    }
    let everywhere = ["--listen=0.0.0.0:1", "--insecure=true"];
    let why = "advertise: is required if listen is every address: set a URL at which indexes reach the agent";
    assert_eq!(refusal(&everywhere), why);
}

#[test]
fn a_journal_on_disk_may_be_of_several_sources_and_lets_nothing_wait() {
    assert_eq!(config(&[]).agent.journal_dir, None);
    let config = config(&["--journal-dir=/j"]);
    assert_eq!(config.agent.journal_dir.as_deref(), Some("/j".as_ref()));
    let consolidated = self::config(&["--consolidate", "--journal-dir=/j"]).agent;
    assert!(consolidated.journal_dir.is_some() && consolidated.sources.hub.consolidate);
    let refused = refusal(&["--batch-interval=1s", "--journal-dir=/j"]);
    assert!(refused.starts_with("batch-interval: does not go with journal-dir: "), "{refused}");
}

#[test]
fn a_store_that_engines_share_is_a_pool_with_a_name() {
    let source = "--source=endpoint=tcp://e:1,replay=tcp://e:2";
    let pools = |config: &Config| {
        let registration = config.agent.registration.as_ref().expect("it registers itself");
        registration.pools.iter().map(|id| id.as_str().to_owned()).collect::<Vec<_>>()
    };
    let without = config(&[source]);
    assert_eq!((pools(&without), &without.agent.engine_pool), (Vec::new(), &None));
    let named = config(&[source, "--engine-pool=store", "--medium-ttl=obj=1h"]);
    assert_eq!(named.agent.engine_pool.as_ref().map(WorkerId::as_str), Some("store"));
    assert_eq!((pools(&named), named.warnings.len()), (vec!["store".to_owned()], 0));
    let elsewhere = config(&[source, "--engine-pool=store", "--pool-indexers=http://h:1"]);
    assert_eq!(elsewhere.agent.pool_indexers, ["http://h:1"]);
    let unsure = config(&["--source=endpoint=tcp://e:1", "--engine-pool=store"]);
    let [warning] = &unsure.warnings[..] else { panic!("no warning") };
    assert!(warning.starts_with("engine-pool: source tcp://e:1 has no replay: "), "{warning}");
    for (arguments, expected) in [
        (
            &["--engine-pool=store"][..],
            "engine-pool: needs a source: only an engine's own publisher announces blocks of a shared store",
        ),
        (
            &[source, "--engine-pool=w"],
            "engine-pool: is also worker-id: the index needs an id of its own for the store",
        ),
        (
            &[source, "--medium-ttl=EXTERNAL=1h"],
            "medium-ttl: \"EXTERNAL\" is the medium of a shared store: set engine-pool",
        ),
        (
            &[source, "--pool-indexers=http://h:1"],
            "pool-indexers: is set without blocks-volume or engine-pool: set one of them, or remove pool-indexers",
        ),
    ] {
        assert_eq!(refusal(arguments), expected);
    }
    let refused = refusal(&[source, "--engine-pool="]);
    assert!(refused.starts_with("engine-pool: "), "{refused}");
}

#[test]
fn it_may_publish_as_an_engine_does_and_nothing_else() {
    assert_eq!(config(&[]).agent.zmq, None);
    let sockets = "--zmq=listen=127.0.0.1:1,replay-listen=127.0.0.1:2";
    let Ok(Action::Run(config, _)) = run(&[&FEW[..3], &[sockets]].concat()) else {
        panic!("refused")
    };
    let zmq = config.agent.zmq.expect("sockets");
    assert_eq!((zmq.listen.port(), zmq.replay.port(), &*zmq.topic), (1, 2, "kv-events"));
    let refused = refusal(&[&format!("{sockets},topic={}", "t".repeat(257))]);
    assert_eq!(refused, "zmq topic: has 257 bytes, the limit is 256");
    // As options of the release before.
    let former = ["--zmq-listen=127.0.0.1:1", "--zmq-replay-listen=127.0.0.1:2", "--zmq-topic=t"];
    let Ok(Action::Run(config, warnings)) = run(&[&FEW[..3], &former].concat()) else {
        panic!("refused")
    };
    let former = config.agent.zmq.expect("sockets");
    assert_eq!((former.listen, former.replay, &*former.topic), (zmq.listen, zmq.replay, "t"));
    assert_eq!(warnings.len(), 3, "{warnings:?}");
}

#[test]
fn the_engines_metrics_are_read_if_that_is_asked_for() {
    let vllm =
        ["--engine=vllm", "--metrics-url=http://127.0.0.1:8000", "--capacity=total-kv-blocks=9"];
    let loads = config(&vllm).agent.loads;
    assert_eq!((loads.totals.kv_blocks, loads.totals.request_slots), (Some(9), None));
    let scrape = loads.scrape.expect("they are read");
    assert_eq!((scrape.engine, scrape.interval.as_secs()), (ScrapedEngine::Vllm, 1));
    assert_eq!(config(&["--engine=vllm"]).agent.loads.scrape, None);
    let refused = refusal(&["--engine=vllm", "--metrics-url=x"]);
    assert!(refused.starts_with("metrics-url: \"x\" must be host:port or http://"), "{refused}");
}

#[test]
fn what_is_printed_may_lack_something() {
    let printed = match run(&["--print-config"]) {
        Ok(Action::Print(printed)) => printed,
        other => panic!("{other:?}"),
    };
    let (first, rest) = printed.split_once('\n').expect("lines");
    assert_eq!(
        first,
        "# It would be refused: worker-id: is required: nothing is assumed of the engine"
    );
    assert!(rest.starts_with("tenant = \"\"\n"), "{rest}");
}

#[test]
fn help_says_what_it_is_and_how_to_begin() {
    let Ok(Action::Print(help)) = run(&["--help"]) else { panic!("no help") };
    assert!(help.starts_with("Agent of Kvasir, the KV-cache index: "), "{help}");
    let (_, example) = help.split_once("Example:\n  kvbm-agent ").expect("an example");
    let arguments: Vec<_> = example.split_whitespace().filter(|word| *word != "\\").collect();
    let Ok(Action::Run(config, _)) = run(&arguments) else { panic!("{arguments:?} are refused") };
    assert_eq!((config.agent.sources.relays.len(), config.warnings.len()), (1, 0));
    for (option, default) in [
        ("--engine <ENGINE>", "custom"),
        ("--lease <TIME>", "60s"),
        ("--deregister [<BOOL>]", "true"),
        ("--journal-bytes <BYTES>", "96MiB"),
        ("--zmq <KEY=VALUE,...>", "topic=kv-events"),
    ] {
        let (_, rest) = help.split_once(option).expect(option);
        let (help, _) = rest.split_once("\n      --").expect("another option");
        // Independent of line breaks.
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains(&format!("[default: {default}]")), "{option}: {help}");
    }
    assert!(!help.contains("[default: ]"), "{help}");
}

#[test]
fn what_routers_want_to_know_of_the_worker_is_passed_on() {
    let arguments = ["--role=decode", "--model-types=chat", "--label=zone=a"];
    let Ok(Action::Run(config, _)) = run(&[&FEW[..], &arguments].concat()) else {
        panic!("refused")
    };
    let registration = config.agent.registration.expect("a worker");
    let profile = &registration.profile;
    assert_eq!((profile.role, profile.model_types.to_string().as_str()), (Role::Decode, "chat"));
    assert_eq!(profile.labels.get("zone").map(String::as_str), Some("a"));
}

#[test]
fn what_is_printed_can_be_read_again() {
    let arguments = [
        "--role=prefill",
        "--model-types=chat+completions",
        "--label=zone=a,rack=7",
        "--lora=7=sql",
        "--capacity=total-kv-blocks=9",
        "--consolidate",
        "--zmq=listen=127.0.0.1:1,replay-listen=127.0.0.1:2,topic=t",
        "--source=endpoint=tcp://a:1,dp-rank=1;endpoint=tcp://a:3,bind=true",
        "--print-config",
    ];
    let Ok(Action::Print(printed)) = run(&[&FEW[..], &arguments].concat()) else {
        panic!("nothing printed")
    };
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::io::Write::write_all(&mut file, printed.as_bytes()).expect("write it");
    let path = file.path().to_str().expect("a path in UTF-8").to_owned();
    let again = run(&["--config", &path, "--print-config"]);
    let Ok(Action::Print(again)) = again else { panic!("{again:?}") };
    assert_eq!(printed, again);
}

#[test]
fn heartbeats_fit_into_the_lease() {
    for (lease, millis) in [("1s", 83), ("6s", 500), ("60s", 5_000), ("1h", 5_000)] {
        let interval = config(&[&format!("--lease={lease}")]).agent.heartbeat_interval;
        assert_eq!(interval.as_millis(), millis, "{lease}");
    }
}

#[test]
fn a_larger_journal_has_more_batches() {
    for (bytes, batches) in [("512KiB", 16_384), ("96MiB", 16_384), ("960MiB", 163_840)] {
        let journal = config(&[&format!("--journal-bytes={bytes}")]).agent.source.journal;
        assert_eq!(journal.batches_max, batches, "{bytes}");
    }
}

/// Former options without effect. Each is accepted with one warning.
#[test]
fn constants_of_now_are_accepted_as_options_of_the_release_before() {
    let former = [
        "--metrics-interval=5s",
        "--sources-max=4",
        "--heartbeat-interval=1s",
        "--batch-blocks=9",
        "--journal-batches=9",
        "--held-blocks-max=9",
    ];
    let Ok(Action::Run(config, warnings)) = run(&[&FEW[..], &former].concat()) else {
        panic!("refused")
    };
    assert_eq!(config.agent.source.journal, self::config(&[]).agent.source.journal);
    assert_eq!(warnings.len(), former.len(), "{warnings:?}");
    let text = "--sources-max has no effect: the limit is 16 sources";
    assert!(warnings.iter().any(|warning| warning.starts_with(text)), "{warnings:?}");
    let capacity = ["--total-kv-blocks=9", "--request-total-slots=7", "--max-num-batched-tokens=5"];
    let Ok(Action::Run(config, warnings)) = run(&[&FEW[..], &capacity].concat()) else {
        panic!("refused")
    };
    let totals = config.agent.loads.totals;
    assert_eq!((totals.kv_blocks, totals.request_slots), (Some(9), Some(7)));
    let profile = config.agent.registration.expect("a worker").profile;
    assert_eq!((profile.total_kv_blocks, profile.max_num_batched_tokens), (Some(9), Some(5)));
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    let image_tokens = ["--image-tokens=sglang-30-bit"];
    let Ok(Action::Run(config, warnings)) = run(&[&FEW[..], &image_tokens].concat()) else {
        panic!("refused")
    };
    let profile = config.agent.registration.expect("a worker").profile;
    assert_eq!(profile.image_tokens, Some(ImageTokens::Sglang30Bit));
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}

#[test]
fn facts_about_the_engine_are_registered() {
    let facts = "--engine-facts=attention-chunk-tokens=8192,eagle-drops-block=true,replay-tokens=128,\
                 prefix-match-unit=16,unannounced-groups=true";
    let registration = config(&[facts]).agent.registration.expect("a worker");
    let expected = EngineFacts {
        attention_chunk_tokens: 8_192,
        eagle_drops_block: true,
        replay_tokens: 128,
        prefix_match_unit: 16,
        unannounced_groups: true,
    };
    assert_eq!(registration.facts, expected);
}
