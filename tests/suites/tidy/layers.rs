//! The table of allowed imports. Cargo keeps crates apart; within a crate this does.

use crate::modules::{TIES, children};
use crate::names::Named;
use crate::sources::{root, rust_files};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// A module, and the modules of its crate that it may name.
type Edges = (&'static str, &'static [&'static str]);

/// For each crate, its modules and what each of them may import.
const EDGES: &[(&str, &[Edges])] = &[
    (
        "indexer-server",
        &[
            ("partitions", &[]),
            ("ingest", &["partitions"]),
            ("snapshot", &["partitions"]),
            ("siblings", &["partitions"]),
            ("query", &["partitions"]),
            ("broker", &["ingest", "snapshot"]),
            ("grpc", &["partitions", "ingest", "snapshot", "siblings", "query"]),
            (
                "config",
                &["partitions", "ingest", "snapshot", "siblings", "broker", "query", "grpc"],
            ),
            (
                "app",
                &[
                    "config",
                    "partitions",
                    "ingest",
                    "snapshot",
                    "siblings",
                    "broker",
                    "query",
                    "grpc",
                ],
            ),
        ],
    ),
    (
        "kit/process",
        &[
            ("text", &[]),
            ("telemetry", &[]),
            ("descriptors", &[]),
            ("net", &[]),
            ("quota", &["net"]),
            ("shares", &["net"]),
            ("access", &["net", "quota"]),
            ("tls", &["access", "net"]),
            ("port", &["access", "net", "quota", "telemetry", "tls"]),
            ("outlet", &[]),
            ("publish", &["net", "outlet", "port"]),
            ("http", &["access", "telemetry", "net", "tls"]),
            ("answer_timer", &[]),
            ("environment", &[]),
            ("config", &["environment", "telemetry", "text"]),
            ("nats", &["config", "text"]),
            ("options", &["access", "config", "http", "nats", "telemetry", "text"]),
            ("program", &["telemetry"]),
            ("entry", &["config", "descriptors", "telemetry"]),
        ],
    ),
    (
        "engine",
        &[
            ("zmtp", &[]),
            ("decode", &[]),
            ("normalise", &["decode"]),
            ("order", &[]),
            ("sequence", &["order"]),
            ("recover", &["order"]),
            ("scrape", &[]),
            ("throttle", &[]),
            ("expiry", &["normalise", "order"]),
            ("link", &["zmtp", "decode", "normalise", "expiry", "order", "sequence", "throttle"]),
        ],
    ),
    (
        "kvbm-agent/feed",
        &[
            ("journal", &[]),
            ("consolidate", &[]),
            ("disk", &["consolidate", "journal"]),
            ("feed", &["journal", "disk"]),
            ("hub", &["consolidate", "journal", "disk", "feed"]),
            ("publisher", &["hub"]),
            ("pause", &[]),
            ("uplink", &["journal", "feed", "pause"]),
        ],
    ),
    (
        "kvbm-agent",
        &[
            ("relay", &[]),
            ("ingest", &[]),
            ("load", &[]),
            ("storage", &[]),
            ("blocks", &["storage"]),
            ("service", &["blocks", "ingest", "load"]),
            ("broker", &["blocks", "load", "service", "storage"]),
            ("zmq", &[]),
            ("agent", &["blocks", "load", "relay", "ingest", "service", "broker", "zmq"]),
            (
                "config",
                &[
                    "agent", "blocks", "broker", "ingest", "load", "relay", "service", "storage",
                    "zmq",
                ],
            ),
            ("app", &["agent", "blocks", "broker", "config", "ingest", "load", "storage"]),
        ],
    ),
    (
        "router-client/router",
        &[
            ("config", &[]),
            ("fleet", &[]),
            ("reports", &[]),
            ("discovery", &["fleet", "reports"]),
            ("agents", &["discovery", "fleet", "reports"]),
            ("fetches", &[]),
            ("pages", &["fleet", "reports"]),
            ("metrics", &["fetches", "fleet"]),
            ("sync", &["fleet", "reports"]),
            (
                "routing",
                &[
                    "agents",
                    "config",
                    "discovery",
                    "fleet",
                    "metrics",
                    "pages",
                    "recorder",
                    "reports",
                    "sync",
                ],
            ),
            ("output", &[]),
            ("recorder", &["output"]),
            ("grpc", &["fleet", "metrics", "recorder", "reports"]),
            ("app", &["config", "grpc", "metrics", "output", "recorder", "routing"]),
        ],
    ),
    (
        "router-client/gateway",
        &[
            ("error", &[]),
            ("config", &[]),
            ("prompt", &[]),
            ("hints", &["error", "prompt"]),
            ("request", &["error", "hints"]),
            ("engines", &["config", "error"]),
            ("tokens", &["config", "engines", "error", "hints", "prompt", "request"]),
            ("answer", &["engines"]),
            ("mismatch", &[]),
            ("metrics", &["request", "tokens"]),
            (
                "gateway",
                &[
                    "answer", "config", "engines", "error", "metrics", "mismatch", "request",
                    "tokens",
                ],
            ),
            ("server", &["error", "gateway", "request"]),
            ("app", &["config", "engines", "gateway", "metrics", "server", "tokens"]),
        ],
    ),
    (
        "router-client/kvasir",
        &[
            ("report", &[]),
            ("check", &["report"]),
            ("config", &[]),
            ("parts", &["check", "config"]),
            ("watch", &["check", "report"]),
            ("serve", &["config", "parts", "watch"]),
            ("once", &["config", "parts", "report"]),
        ],
    ),
    (
        "clients/c",
        &[
            ("types", &[]),
            ("fault", &["types"]),
            ("publisher", &["fault"]),
            ("handles", &["fault", "publisher"]),
            ("read", &["fault", "types"]),
            ("abi", &["fault", "handles", "publisher", "read", "types"]),
        ],
    ),
    (
        "proto",
        &[
            ("limits", &[]),
            ("target", &["limits"]),
            ("code", &[]),
            ("types", &["limits"]),
            ("hash", &["types"]),
            ("digest", &["types"]),
            ("shard", &["types", "hash"]),
            ("codec", &["limits"]),
            ("find_codec", &["codec", "convert"]),
            ("broker", &["convert", "hash", "limits", "types"]),
            (
                "convert",
                &["types", "hash", "digest", "shard", "limits", "target", "code", "codec", "pb"],
            ),
        ],
    ),
];

/// Crates of many small modules, and modules of modules: lowest first.
const LAYERS: &[(&str, &str)] = &[
    (
        "indexer-server/index",
        "dirty limits prefetch runs table totals numbers placements sets slots changes pages segments cursor trie hold \
         chunks roles meanings source shortfall error image record compact declared records bits contradicted reuse holder listing index apply cut digest dump walk shared find rank stats \
         validate views compare absolute grouped park registry remove restore shed store sweep",
    ),
    (
        "router-client",
        "config error images prompt stream overlap workers client merge replicas sharded route router",
    ),
    (
        "router-client::route",
        "error cost fetch held trust active sync outliers queue sessions select",
    ),
    (
        "router-client::router",
        "config error index waiting outcome workers candidates state shared reservation builder pools",
    ),
    (
        "router-client::route::active",
        "slab chains key prefills rank request outcome requests config loads",
    ),
    ("router-client::route::sync", "config counts message changes pack peers answers replication"),
    ("router-client::route::select", "mode question decision busy filter score pick selector"),
    ("sim", "place server stop_signals workload engine client sweep demo bin"),
    ("kit/store", "cause options"),
    ("kit/tasks", "causes tasks group"),
    ("kit/access", "names role denied rate principal file identities"),
    ("kit/tls", "alpn error pem reload token names server addresses again channel dial"),
    (
        "kvbm-agent/memory",
        "claims raw region mapping arena system pinned shared device buffer nixl",
    ),
    ("kvbm-agent/memory::arena", "view copy"),
    ("kvbm-agent/memory::device", "driver"),
    ("kvbm-agent/memory::nixl", "error calls lists agent"),
    (
        "kvbm-agent/tiers",
        "checksum block error fields cancel testing storage host disk nixl objects executor faults manager",
    ),
    (
        "kvbm-agent/tiers::manager",
        "error memory metrics records waiters convert config counters leases shared feed executors relay session \
         onboard fill lend driver block_manager",
    ),
    ("kvbm-agent/transfer", "limits wire convert counters backend exposed nixl serve client"),
    ("kvbm-agent/transfer::convert", "part exchange"),
    ("kvbm-agent/transfer::wire", "kind error header rank description messages frames"),
    ("kvbm-agent/transfer::nixl", "export staging reads options"),
    ("kvbm-agent/transfer::serve", "shared sending lending connection owner"),
    (
        "kvbm-agent/transfer::client",
        "config owners connection connections requests answers slots receive sent parts loans borrow staged tcp \
         nixl",
    ),
    ("kvbm-agent/tiers::disk", "error format file medium recover"),
    ("kvbm-agent/tiers::objects", "format volume"),
    (
        "indexer-server::grpc",
        "endpoints config local parts sibling status access admin dump_turns dumpers large dump find ingest indexer server",
    ),
    (
        "indexer-server::config",
        "worker index_shards settings options broker shard_map shard check read",
    ),
    (
        "indexer-server::ingest",
        "limits exhausted error metrics turns answer local ownership config push_source presence subscription link worker sockets registry claim introduce pools aged \
         follower placement reuse rank_states resume sharding testing session",
    ),
    (
        "indexer-server::partitions",
        "budget config image layer origin pace registered_by restoring shard partition resumed metrics relief \
         speculative command writer dump",
    ),
    (
        "indexer-server::snapshot::store",
        "directory folder frames marks read write import position export",
    ),
    ("indexer-server::snapshot::format", "reader reasons registered_by contents keys records"),
    (
        "indexer-server::snapshot::checkpoint",
        "error report shared_store stream metrics restore task",
    ),
    (
        "indexer-server::broker",
        "config coverage metrics position bucket connect local subjects inlet starting core log shard_map \
         snapshots",
    ),
    (
        "kvbm-agent/blocks",
        "planted tier identity layout events inactive store lifecycle pool plan gate manager sets gather simulation_test",
    ),
    ("kvbm-agent/blocks::layout", "error config contiguous separate form in_slot"),
    ("kvbm-agent/blocks::events", "event manager handles"),
    ("kvbm-agent/blocks::inactive", "lists sketch lru frequency lineage"),
    ("kvbm-agent/blocks::store", "config error slot stats pins slots held"),
    ("kvbm-agent/blocks::lifecycle", "state error quarantined registered complete partial mutable"),
    ("kvbm-agent/blocks::plan", "order limits filter queue tier_block settled lane routes"),
    ("kvbm-agent/blocks::manager", "config found tier_pool state"),
    (
        "kvbm-agent/blocks::sets",
        "ids error limits memory parallel stats bytes set_layout registrar serialized state book shared remote_blocks \
         registry",
    ),
    ("kvbm-agent/blocks::gather", "error op side pair copy_plan"),
    ("kvbm-agent/blocks::simulation_test", "storage reader executor setup world check"),
    ("kvbm-agent::service", "config outlet digests events loads records local server"),
    (
        "kvbm-agent::broker",
        "config error reply connection message answer loads session jetstream plain publish storage",
    ),
    (
        "kvbm-agent::blocks",
        "absent error config volume storages peers status messages verdicts sessions checks shared fetched held opened onboarded service source running",
    ),
    ("kvbm-agent::ingest", "config refusals error source session service"),
    ("kvbm-agent::load", "error loads board scrape config"),
    (
        "kvbm-agent/feed::journal",
        "config error image names batch rank ring scan split inventory dump store persisted",
    ),
    (
        "kvbm-agent/feed::hub",
        "config left merge persisted report source sources resume waiting inlet",
    ),
    ("engine::decode", "event limits error reader layout values object_key extra fields"),
    ("engine::link", "clears command config frames unheard replay topic reports logs driver"),
    (
        "engine::normalise",
        "drops reasons namespace unchained keys place recent further removed adapters chunks stored known",
    ),
    ("engine::order", "buffer held jitter outcomes core rounds"),
    ("engine::scrape", "kind error exposition cache target fetch engine"),
    ("engine/discovery", "spec pods kubernetes source facts registrar follow"),
    ("engine/http", "address keys connect client"),
    ("engine::recover", "config step progress recovery inputs validate rules_test"),
    (
        "engine::sequence",
        "config incarnation progress step replays sequencer inputs rules_test validate",
    ),
    (
        "proto::convert",
        "error shard shared meaning find find_answer profile find_wire pool chunk facts worker ingest list placement reuse select broker blocks fetch local digest dump \
         load bytes storage",
    ),
    ("kvbm-agent::storage", "config waiting outbox book"),
];

/// Modules that depend on another one directly in the same module, or crate where `inside` is empty.
fn edges(krate: &str, inside: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, to) in TIES.keys() {
        let is_here = from.0 == krate && from.1.iter().rev().skip(1).rev().eq(inside.iter());
        if let ([.., from], [.., to], true) = (&*from.1, &*to.1, is_here) {
            edges.entry(from.clone()).or_default().insert(to.clone());
        }
    }
    edges
}

#[test]
fn imports_follow_the_table() {
    let mut faults = Vec::new();
    for (krate, modules) in EDGES {
        let table: BTreeMap<&str, &[&str]> = modules.iter().copied().collect();
        let listed: BTreeSet<_> = table.keys().map(|name| (*name).to_owned()).collect();
        let present = children(krate, &[]);
        if listed != present {
            faults.push(format!("{krate}: the table has {listed:?}, the crate {present:?}"));
        }
        for (from, to) in edges(krate, &[]) {
            let allowed = table.get(&*from).copied().unwrap_or_default();
            for to in to.iter().filter(|to| !allowed.contains(&to.as_str())) {
                faults.push(format!("{krate}: {from} must not import {to}"));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// A module imports only modules that stand before it.
#[test]
fn imports_follow_the_layers() {
    let mut faults = Vec::new();
    for (folder, order) in LAYERS {
        let (krate, inside) = folder.split_once("::").unwrap_or((folder, ""));
        let inside: Vec<_> = inside.split("::").filter(|name| !name.is_empty()).collect();
        let order: Vec<_> = order.split_whitespace().collect();
        let (listed, present): (BTreeSet<_>, _) =
            (order.iter().map(|name| (*name).to_owned()).collect(), children(krate, &inside));
        if listed != present {
            faults.push(format!("{folder}: listed are {listed:?}, there are {present:?}"));
        }
        let place = |name: &str| order.iter().position(|at| *at == name);
        for (from, to) in edges(krate, &inside) {
            for to in to.iter().filter(|to| place(to) > place(&from)) {
                faults.push(format!("{folder}: {from} must not import {to}"));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Only the server's gRPC port works with generated messages; conversions hand everything else values.
#[test]
fn messages_stay_at_the_port() {
    let files = rust_files();
    let server = files.iter().filter(|source| {
        source.path.starts_with("indexer-server/src/")
            && !source.path.starts_with("indexer-server/src/grpc/")
            && !source.is_test()
    });
    for source in server {
        for line in source.text.lines().take(source.production_lines()) {
            let is_word = |at: char| at.is_ascii_alphanumeric() || at == '_';
            let names_messages = line.split(|at| !is_word(at)).any(|word| word == "pb");
            assert!(!names_messages, "{}: {line}", source.path);
        }
    }
}

#[test]
fn crates_stay_without_what_is_not_theirs() {
    for (name, banned) in [
        ("kvasir-index", &["tokio", "tonic", "tracing", "prost"][..]),
        ("kvasir-engine", &["tonic", "prost"][..]),
        ("kvasir-blocks", &["tokio", "tonic", "tracing", "prost"][..]),
        // Gateways link it.
        ("router-client", &["clap", "async-nats", "prometheus-client", "kvasir-process"][..]),
        // Engines link it: without the agent, and without a journal on disk.
        (
            "kvasir-c",
            &[
                "kvbm-agent",
                "kvasir-store",
                "rocksdb",
                "librocksdb-sys",
                "kvasir-memory",
                "kvasir-tiers",
            ][..],
        ),
        // The demo and the sweep are quick to build: they start the product's processes, and link no RocksDB.
        (
            "kvasir-sim",
            &["kvasir-tests", "indexer-server", "kvbm-agent", "kvasir-store", "rocksdb"][..],
        ),
        // Pointers stay by themselves.
        ("kvasir-memory", &["kvasir-tiers", "kvasir-proto", "tokio", "tracing"][..]),
    ] {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let output = Command::new(cargo)
            .args(["tree", "--locked", "--offline", "--edges", "normal", "--prefix", "none"])
            .args(["--package", name])
            .current_dir(root())
            .output()
            .expect("cargo tree runs");
        let tree = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(tree.starts_with(name), "{tree}");
        for line in tree.lines() {
            let package = line.split(' ').next().unwrap_or_default();
            assert!(!banned.contains(&package), "{name} depends on {package}");
        }
    }
}

/// The index has no I/O, clock, thread or lock: of the standard library it uses plain data only.
#[test]
fn the_index_is_pure() {
    const PURE: [&str; 16] = [
        "arch",
        "borrow",
        "cmp",
        "collections",
        "convert",
        "fmt",
        "hash",
        "hint",
        "iter",
        "mem",
        "num",
        "ops",
        "ptr",
        "slice",
        "str",
        "vec",
    ];
    for source in rust_files().iter().filter(|at| at.path.starts_with("indexer-server/index/src/"))
    {
        if source.is_test() {
            continue;
        }
        let paths = Named::of(&source.text).paths.into_iter();
        for path in paths.filter(|path| path.first().is_some_and(|first| first == "std")) {
            let names: Vec<_> = path.iter().skip(1).map(String::as_str).collect();
            let is_pure = match *names {
                ["sync", what, ..] => what == "Arc",
                ["time", what, ..] => what == "Duration",
                [what, ..] => PURE.contains(&what),
                [] => false,
            };
            assert!(is_pure, "{}: {}", source.path, path.join("::"));
        }
    }
}

/// Tokens end where they are hashed: beyond, nothing has a name that could stand for one.
#[test]
fn tokens_do_not_reach_the_index() {
    const FOLDERS: [&str; 4] = [
        "indexer-server/index/src/",
        "indexer-server/src/partitions/",
        "indexer-server/src/snapshot/",
        "indexer-server/src/siblings/",
    ];
    for source in rust_files() {
        if source.is_test() || !FOLDERS.iter().any(|folder| source.path.starts_with(folder)) {
            continue;
        }
        for line in source.text.lines().take(source.production_lines()) {
            let code = line.split("//").next().unwrap_or_default();
            let words = code.split(|at: char| !at.is_ascii_alphanumeric() && at != '_');
            // Numbers of tokens, in the rule for models with several KV-cache groups.
            let is_count = |word: &str| {
                source.path.ends_with("find/groups.rs")
                    && ["tokens", "attention_chunk_tokens", "replay_tokens"].contains(&word)
            };
            for word in words.filter(|word| *word != "CancellationToken" && !is_count(word)) {
                assert!(!word.to_lowercase().contains("token"), "{}: {line}", source.path);
            }
        }
    }
}
