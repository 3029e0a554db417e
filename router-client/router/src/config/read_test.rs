use super::*;
use router_client::route::{BlockTracking, CostConfig, FetchConfig, Mode, QueuePolicy};
use router_client::router::PoolsConfig;
use std::time::Duration;

fn read_all(arguments: &[&str]) -> Result<RoutingConfig, String> {
    let arguments = ["router"].iter().chain(arguments).map(OsString::from);
    match read(arguments) {
        Ok(Action::Run(config, _)) => Ok(config.routing),
        Ok(Action::Print(text)) => Err(text),
        Err(error) => Err(error.to_string()),
    }
}

const INDEXER: [&str; 2] = ["--indexer", "127.0.0.1:50051"];

fn with(arguments: &[&str]) -> Result<RoutingConfig, String> {
    read_all(&[INDEXER.as_slice(), arguments].concat())
}

#[test]
fn the_defaults_are_those_of_the_documents() {
    let config = with(&[]).expect("defaults");
    let router = config.router;
    assert_eq!(config.shards, [["http://127.0.0.1:50051"]]);
    assert_eq!(router.select.mode, Mode::Kv);
    assert_eq!((router.select.cost.overlap_score_weight, router.select.temperature), (1.0, 0.0));
    assert_eq!(router.select.cost, CostConfig::default());
    assert_eq!(config.pools, PoolsConfig::default());
    assert_eq!((router.queue.threshold, router.queue.policy), (Some(2.0), QueuePolicy::Fcfs));
    assert_eq!(router.active.blocks, BlockTracking::Prompt);
    assert_eq!(router.active.lease, Duration::from_secs(300));
    assert_eq!(router.placement_ttl, None);
    assert_eq!((config.router.sync, config.nats), (None, None));
}

#[test]
fn pools_have_their_settings() {
    let pools = with(&["--remote-prefill-tokens-min", "7"]).expect("options").pools;
    assert_eq!(pools, PoolsConfig { remote_prefill_tokens_min: 7, ..PoolsConfig::default() });
}

#[test]
fn shards_have_replicas() {
    let given = read_all(&["--indexer", "a:1,b:1", "--indexer", "c:1;d:1,e:1"]).expect("shards");
    let expected =
        [vec!["http://a:1", "http://b:1"], vec!["http://c:1"], vec!["http://d:1", "http://e:1"]];
    assert_eq!(given.shards, expected);
}

#[test]
fn fetches_are_planned_if_asked() {
    assert_eq!(with(&[]).expect("defaults").router.fetch, None);
    let fetch = |arguments: &[&str]| with(arguments).expect("options").router.fetch;
    assert_eq!(fetch(&["--fetch-plans"]), Some(FetchConfig::default()));
    let set = ["--fetch-plans", "--fetch-rates", "bandwidth=3KiB,prefill=7"];
    let expected = FetchConfig { bytes_per_second: 3_072.0, prefill_tokens_per_second: 7.0 };
    assert_eq!(fetch(&set), Some(expected));
}

#[test]
fn without_events_decisions_are_recorded() {
    let ttl = |arguments: &[&str]| with(arguments).expect("options").router.placement_ttl;
    assert_eq!(ttl(&["--kv-events", "false"]), Some(Duration::from_secs(120)));
    assert_eq!(
        ttl(&["--kv-events", "false", "--timing", "placement-ttl=7s"]),
        Some(Duration::from_secs(7))
    );
    assert_eq!(ttl(&["--placement-ttl", "2s"]), Some(Duration::from_secs(2)));
}

#[test]
fn sync_has_a_server_by_default() {
    let config = with(&["--replica-sync"]).expect("options");
    assert!(config.router.sync.is_some() && config.nats.is_some(), "{config:?}");
    let named = with(&["--nats-url", "nats://n:4222"]).expect("options");
    assert_eq!(named.nats.map(|at| at.to_string()).as_deref(), Some("nats://n:4222"));
    assert_eq!(named.router.sync, None);
}

#[test]
fn what_cannot_be_used_is_refused_by_name() {
    for (arguments, expected) in [
        (&["--overlap-score-weight=-1"][..], "overlap-score-weight: must be at least 0"),
        (&["--temperature=-1"], "temperature: must be at least 0"),
        (&["--credits=host=2"], "credits: host: must be between 0 and 1"),
        (&["--queue=threshold=-1"], "queue: threshold: must be more than 0"),
        (&["--queue=entries=0"], "queue: entries: must be at least 1"),
        (&["--queue=timeout=1m"], "queue: timeout: is 60s, at most 25s"),
        (&["--busy-threshold=prefill-tokens=0"], "busy-threshold: prefill-tokens: must be more"),
        (&["--timing=max-staleness=0s"], "timing: max-staleness: must be longer than 0"),
        (&["--credits=uncertain=2"], "credits: uncertain: must be between 0 and 1"),
        (
            &["--fetch-plans", "--fetch-rates=prefill=-1"],
            "fetch-rates: prefill: must be at least 0",
        ),
        (&["--fetch-rates=bandwidth=fast"], "bandwidth: \"fast\" is not a number"),
        (&["--timing=request-lease=2d"], "timing: request-lease: must be at most a day"),
        (&["--timing=placement-ttl=0s"], "timing: placement-ttl: is 0s, must be longer"),
        (&["--timing=index-deadline=0s"], "timing: index-deadline: is 0s, must be longer"),
        (&["--mode=best"], "must be one of kv, round-robin"),
        (&["--load=track-blocks=output"], "must be one of off, prompt, prompt-and-output"),
        (&["--indexer=tcp://a:1"], "indexer: "),
        (&["--nats-url=a:1"], "nats-url: "),
    ] {
        let error = with(arguments).expect_err(expected);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    let error = read_all(&[]).expect_err("no index");
    assert!(error.contains("indexer: is required"), "{error}");
}

/// Every option of the last release is accepted, and each setting has its effect.
#[test]
fn options_of_the_last_release_keep_their_effect() {
    let given = [
        "--device-credit=0.9",
        "--host-credit=0.8",
        "--disk-credit=0.7",
        "--pool-credit=0.6",
        "--uncertain-credit=0.4",
        "--fetch-plans",
        "--fetch-bandwidth=3KiB",
        "--prefill-rate=7",
        "--queue-threshold=3",
        "--queue-policy=wspt",
        "--queue-entries=9",
        "--queue-timeout=8s",
        "--active-decode-blocks-threshold=0.5",
        "--active-prefill-tokens-threshold=11",
        "--active-prefill-tokens-threshold-frac=12",
        "--track-blocks=prompt-and-output",
        "--kv-reuse=unique",
        "--track-prefill-tokens=false",
        "--active-prefill-weight=0.25",
        "--decode-price=full",
        "--slow-start=0s",
        "--ejection-failures=2",
        "--ejection-time=13s",
        "--index-deadline=14ms",
        "--discovery-interval=15s",
        "--max-staleness=16s",
        "--request-lease=17s",
        "--session-ttl=18s",
        "--report-stale-after=19s",
        "--sync-digest-interval=5s",
        "--placement-ttl=20s",
    ];
    let now = [
        "--credits=device=0.9,host=0.8,disk=0.7,pool=0.6,uncertain=0.4",
        "--fetch-plans",
        "--fetch-rates=bandwidth=3KiB,prefill=7",
        "--queue=threshold=3,policy=wspt,entries=9,timeout=8s",
        "--busy-threshold=decode-blocks=0.5,prefill-tokens=11,prefill-tokens-frac=12",
        "--load=track-blocks=prompt-and-output,kv-reuse=unique,track-prefill-tokens=false",
        "--load=active-prefill-weight=0.25,decode-price=full",
        "--worker-health=slow-start=0s,ejection-failures=2,ejection-time=13s",
        "--timing=index-deadline=14ms,discovery-interval=15s,max-staleness=16s",
        "--timing=request-lease=17s,session-ttl=18s,report-stale-after=19s",
        "--timing=sync-digest-interval=5s,placement-ttl=20s",
    ];
    let old = format!("{:?}", with(&given).expect("the former options"));
    assert_eq!(old, format!("{:?}", with(&now).expect("options")));
    assert_ne!(old, format!("{:?}", with(&["--fetch-plans"]).expect("defaults")));
    let known = ROUTING_RETIRED.iter().filter(|retired| retired.replacement().is_some());
    assert_eq!(known.count(), given.len() - 1, "all former options are here, and --fetch-plans");
}
