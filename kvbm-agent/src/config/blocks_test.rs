use super::*;
use crate::agent::AgentConfig;
use crate::blocks::LayoutDimensions;
use crate::config::{PROGRAM, read};
use kvasir_blocks::LayoutForm;
use kvasir_blocks::sets::TensorParallel;
use kvasir_process::config::Action;
use std::ffi::OsString;
use std::time::Duration;

const FEW: [&str; 6] = [
    PROGRAM,
    "--worker-id=w",
    "--model=m",
    "--block-size=16",
    "--indexers=127.0.0.1:1",
    "--blocks-host-bytes=1MiB",
];

fn refusal(arguments: &[&str]) -> String {
    let arguments = [&FEW[..], arguments].concat();
    read(arguments.iter().map(OsString::from)).expect_err("refused").to_string()
}

fn blocks(arguments: &[&str]) -> BlocksConfig {
    let arguments = [&FEW[..], arguments].concat();
    match read(arguments.iter().map(OsString::from)) {
        Ok(Action::Run(config, _)) => config.agent.blocks.expect("a block manager"),
        other => panic!("{arguments:?}: {other:?}"),
    }
}

fn counts(config: &BlocksConfig) -> Vec<(BlockTier, u32)> {
    config.manager.blocks.tiers.iter().map(|(tier, at)| (*tier, at.blocks)).collect()
}

#[test]
fn the_block_manager_is_off_unless_it_has_memory() {
    let off = FEW[..5].iter().map(OsString::from);
    let Ok(Action::Run(config, _)) = read(off) else { panic!("refused") };
    assert!(config.agent.blocks.is_none());
    let alone = [&FEW[..5], &["--blocks-socket=/run/blocks"]].concat();
    let refused = read(alone.iter().map(OsString::from)).expect_err("refused").to_string();
    let why = "blocks-socket: is set, and the block manager is off: set blocks-host-bytes, too";
    assert_eq!(refused, why);
}

#[test]
fn sizes_become_blocks_of_whole_slots() {
    let config = blocks(&[
        "--blocks-bytes=6KiB",
        "--blocks-disk=/tmp/blocks",
        "--blocks-disk-bytes=10MiB",
        "--blocks-volume=file:///tmp/volume",
        "--blocks-volume-bytes=20MiB",
        "--blocks-disk-offers-min=2",
        "--blocks-eviction=lru",
    ]);
    let expected = [(BlockTier::Host, 128), (BlockTier::Disk, 1_280), (BlockTier::Volume, 2_560)];
    assert_eq!(counts(&config), expected, "each takes 8 KiB");
    assert_eq!((config.block_bytes, config.dimensions), (6 << 10, None));
    let disk = config.manager.blocks.tiers[&BlockTier::Disk];
    assert_eq!((disk.offers_min, disk.eviction), (2, EvictionPolicy::Lru));
    assert_eq!(config.manager.lease_max, Duration::from_secs(60));
    assert_eq!(config.arena, ArenaBacking::Memfd);
}

#[test]
fn a_block_is_stated_by_its_parts() {
    let parts = ["--blocks-layers=2", "--blocks-inner-dim=64", "--blocks-dtype=bfloat16"];
    let config = blocks(&parts);
    assert_eq!(config.block_bytes, 2 * 16 * 64 * 2 * 2);
    let dimensions = LayoutDimensions {
        layers: 2,
        outer_dim: 2,
        inner_dim: 64,
        dtype_width_bytes: 2,
        form: LayoutForm::FullyContiguous,
        alignment_bytes: 1,
        parallel: TensorParallel::SINGLE,
    };
    assert_eq!(config.dimensions, Some(dimensions));
    assert_eq!(counts(&config), [(BlockTier::Host, 128)]);
    // Existing disks have this description.
    let expected = "model \"m\", tenant \"\", 16 tokens and 8192 bytes a block, 2 layers of 2 x 64 elements of 2 bytes, dtype \
                    \"bfloat16\", layout \"\"";
    assert_eq!(config.description, expected);
}

#[test]
fn a_rank_and_a_form_of_layout_are_stated() {
    let config = blocks(&[
        "--blocks-layers=2",
        "--blocks-inner-dim=10",
        "--blocks-form=layer-separate",
        "--blocks-alignment=1KiB",
        "--blocks-tp-rank=5",
        "--blocks-tp-size=8",
        "--blocks-tp-replicas=2",
    ]);
    let dimensions = config.dimensions.expect("dimensions");
    assert_eq!(dimensions.parallel, TensorParallel { rank: 5, size: 8, replicas: 2 });
    assert_eq!(config.block_bytes, 2 << 10, "a layer has 640 bytes");
    let expected = "2 layers of 2 x 10 elements of 2 bytes, layer-separate, aligned to 1024, part 2 of 4 of the heads";
    assert!(config.description.contains(expected), "{}", config.description);
    // Agents with the same heads have the same blocks.
    let mla = ["--blocks-layers=2", "--blocks-inner-dim=10", "--blocks-tp-size=8"];
    let mla = blocks(&[&mla[..], &["--blocks-tp-rank=3", "--blocks-tp-replicas=8"]].concat());
    let single = blocks(&["--blocks-layers=2", "--blocks-inner-dim=10"]);
    assert_eq!(mla.fingerprint(), single.fingerprint());
}

/// Every change of the bytes' meaning changes the fingerprint on disks and volumes.
#[test]
fn blocks_of_another_model_layout_or_dtype_have_another_fingerprint() {
    let parts = ["--blocks-layers=2", "--blocks-inner-dim=64"];
    let same = blocks(&parts).fingerprint();
    assert_eq!(same, blocks(&[&parts[..], &["--blocks-threads=9"]].concat()).fingerprint());
    let others: [&[&str]; 12] = [
        &["--model=n"],
        &["--tenant=t"],
        &["--block-size=32"],
        &["--blocks-outer-dim=1"],
        &["--blocks-dtype=bfloat16"],
        &["--blocks-layout=layers-first"],
        &["--blocks-form=layer-separate"],
        &["--blocks-form=outer-separate"],
        &["--blocks-tp-size=2"],
        &["--blocks-tp-size=2", "--blocks-tp-rank=1"],
        &["--blocks-dtype-bytes=4"],
        &["--blocks-outer-dim=1", "--blocks-dtype-bytes=4"],
    ];
    let mut seen = vec![same];
    for other in others {
        // A flag may be given once, so the earlier value is removed.
        let name = other[0].split_once('=').expect("a value").0;
        let few = FEW.iter().copied().filter(|flag| !flag.starts_with(name));
        let arguments: Vec<_> =
            few.chain(parts).chain(other.iter().copied()).map(OsString::from).collect();
        let Ok(Action::Run(config, _)) = read(arguments) else { panic!("{other:?}") };
        let fingerprint = config.agent.blocks.expect("a block manager").fingerprint();
        assert!(!seen.contains(&fingerprint), "{other:?}");
        seen.push(fingerprint);
    }
}

#[test]
fn what_is_missing_or_wrong_is_named_with_the_fix() {
    let size = "--blocks-bytes=4KiB";
    for (arguments, expected) in [
        (
            &[][..],
            "blocks-bytes: is required with blocks-host-bytes, or blocks-layers and blocks-inner-dim are",
        ),
        (&["--blocks-layers=2"], "blocks-bytes: is required with blocks-host-bytes, or"),
        (&[size, "--blocks-layers=2"], "blocks-bytes: does not go with blocks-layers"),
        (&["--blocks-bytes=100"], "blocks-bytes: is 100, must be a multiple of block-size, 16"),
        (&["--blocks-bytes=0"], "blocks-bytes: is 0, must be a multiple of block-size, 16"),
        (
            &["--blocks-bytes=2MiB"],
            "blocks-host-bytes: is 1048576, and one block takes 2097152 bytes: give more",
        ),
        (&["--blocks-layers=0", "--blocks-inner-dim=1"], "blocks-layers: must not be 0"),
        (
            &["--blocks-layers=1", "--blocks-inner-dim=1", "--blocks-outer-dim=3"],
            "blocks-outer-dim: is 3, the limit is 2",
        ),
        (
            &["--blocks-layers=1", "--blocks-inner-dim=1", "--blocks-dtype-bytes=3"],
            "blocks-dtype-bytes: is 3, which is not a power of two",
        ),
        (
            &["--blocks-layers=4294967295", "--blocks-inner-dim=4294967295"],
            "blocks-layers: block_bytes overflows 64 bits",
        ),
        (
            &[size, "--blocks-disk=/x"],
            "blocks-disk-bytes: is required with blocks-disk: state a size",
        ),
        (
            &[size, "--blocks-disk-bytes=1MiB"],
            "blocks-disk: is required with blocks-disk-bytes: state a place",
        ),
        (&[size, "--blocks-volume=s3://x"], "blocks-volume-bytes: is required with blocks-volume"),
        (&[size, "--blocks-threads=0"], "blocks-threads: is 0, must be 1 to 256"),
        (&[size, "--blocks-sessions-max=513"], "blocks-sessions-max: is 513, must be 1 to 512"),
        (&[size, "--blocks-lease-max=0s"], "blocks-lease-max: is 0s, must be longer"),
        (&[size, "--blocks-rank=1024"], "blocks-rank: is 1024, must be 0 to 1023"),
        (
            &[size, "--source=endpoint=tcp://a:1"],
            "consolidate: is required with blocks-host-bytes and source",
        ),
        (
            &[size, "--source=endpoint=tcp://a:1", "--consolidate", "--sources-max=1"],
            "sources-max: 1 is less than the 1 of source and the block manager",
        ),
        (&[size, "--blocks-arena=x"], "\"x\" is not memfd, private, locked or a path from /"),
        (&[size, "--blocks-eviction=x"], "\"x\" is not lineage, lru or tinylfu"),
    ] {
        let refused = refusal(arguments);
        assert!(refused.contains(expected), "{arguments:?}: {refused}");
    }
}

#[test]
fn layouts_that_cannot_be_are_refused_by_the_option() {
    let [layers, inner] = ["--blocks-layers=2", "--blocks-inner-dim=4"];
    for (arguments, expected) in [
        (
            &["--blocks-bytes=4KiB", "--blocks-tp-size=2"][..],
            "blocks-tp-size: needs blocks-layers and blocks-inner-dim in place of blocks-bytes",
        ),
        (&[layers, inner, "--blocks-tp-size=0"], "blocks-tp-size: must not be 0"),
        (&[layers, inner, "--blocks-tp-rank=1"], "blocks-tp-rank: is 1, the limit is 0"),
        (&[layers, inner, "--blocks-tp-size=2000"], "blocks-tp-size: is 2000, the limit is 1024"),
        (&[layers, inner, "--blocks-tp-replicas=2"], "blocks-tp-replicas: "),
        (
            &[layers, inner, "--blocks-alignment=64"],
            "blocks-alignment: has no effect on contiguous",
        ),
        (
            &[layers, inner, "--blocks-form=layer-separate", "--blocks-alignment=48"],
            "blocks-alignment: is 48, which is not a power of two",
        ),
        (
            &[layers, inner, "--blocks-form=layer-separate", "--blocks-alignment=8KiB"],
            "blocks-alignment: is 8192, the limit is 4096",
        ),
        (
            &[layers, inner, "--blocks-form=x"],
            "\"x\" is not contiguous, layer-separate or outer-separate",
        ),
    ] {
        let refused = refusal(arguments);
        assert!(refused.contains(expected), "{arguments:?}: {refused}");
    }
}

#[test]
fn keys_of_a_volume_are_printed_nowhere() {
    let volume = [
        "--blocks-bytes=4KiB",
        "--blocks-volume=s3://user:hidden@bucket/prefix",
        "--blocks-volume-bytes=1GiB",
        "--blocks-volume-option=aws_secret_access_key=hidden,aws_region=hidden",
    ];
    let config = blocks(&volume);
    let place = config.volume.as_ref().expect("a volume");
    let pair = |key: &str| (key.to_owned(), "hidden".to_owned());
    assert_eq!(place.options, [pair("aws_secret_access_key"), pair("aws_region")]);
    assert!(!format!("{config:?}").contains("hidden"), "{config:?}");
    let arguments = [&FEW[..], &volume, &["--print-config"]].concat();
    let Ok(Action::Print(text)) = read(arguments.iter().map(OsString::from)) else {
        panic!("nothing is printed")
    };
    assert!(!text.contains("hidden"), "{text}");
    assert!(text.contains("aws_secret_access_key=***"), "{text}");
    let wrong = ["--blocks-volume-option=hidden", "--blocks-volume-bytes=1GiB"];
    let refused = refusal(&[&volume[..1], &["--blocks-volume=s3://x"], &wrong].concat());
    assert_eq!(refused, "blocks-volume-option: is no key=value");
}

#[test]
fn a_file_that_cannot_be_read_shows_no_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("agent.toml");
    for line in ["aws_secret_access_key=hidden", "blocks-volume-option = [\"key=hidden\""] {
        std::fs::write(&path, format!("{line} \"\n")).expect("a file");
        let config = format!("--config={}", path.display());
        let refused = refusal(&[&config]);
        assert!(refused.contains("TOML parse error"), "{refused}");
        assert!(!refused.contains("hidden"), "{refused}");
    }
}

fn agent(arguments: &[&str]) -> AgentConfig {
    let arguments = [&FEW[..], arguments].concat();
    match read(arguments.iter().map(OsString::from)) {
        Ok(Action::Run(config, _)) => config.agent,
        other => panic!("{arguments:?}: {other:?}"),
    }
}

fn pool(arguments: &[&str]) -> String {
    let config =
        agent(&[&["--blocks-bytes=4KiB", "--blocks-volume-bytes=1GiB"], arguments].concat());
    let registered = config.registration.expect("it registers itself").pools;
    let [pool] = &registered[..] else { panic!("one pool: {registered:?}") };
    assert_eq!(config.blocks.expect("blocks").pool(), Ok(Some(pool.clone())));
    pool.as_str().to_owned()
}

/// Agents that share a volume name the same pool, unless their blocks differ.
#[test]
fn a_volume_is_a_pool_of_the_worker() {
    let url = "--blocks-volume=s3://user:hidden@bucket/prefix";
    let by_url = pool(&[url]);
    assert!(by_url.starts_with("volume:s3://user:***@bucket/prefix#"), "{by_url}");
    let other = "--blocks-volume=file:///mnt/kv";
    let named = "--storage-volume-name=kv";
    assert_eq!(pool(&[url, named]), pool(&[other, named]));
    assert_ne!(pool(&[url]), pool(&[other]));
    assert_ne!(pool(&[url, named]), pool(&[url, named, "--blocks-layout=heads-first"]));
    let long = format!("--blocks-volume=s3://bucket/{}", "x".repeat(300));
    assert!(pool(&[&long]).len() < 40, "{}", pool(&[&long]));
    let without = agent(&["--blocks-bytes=4KiB"]).registration.expect("it registers itself");
    assert_eq!(without.pools, []);
}

#[test]
fn the_pool_is_published_to_other_shards_too() {
    let volume = "--blocks-volume=file:///mnt/kv";
    let of = |others| ["--blocks-bytes=4KiB", "--blocks-volume-bytes=1GiB", volume, others];
    let others = agent(&of("--pool-indexers=http://a:1,http://b:1"));
    assert_eq!(others.pool_indexers, ["http://a:1", "http://b:1"]);
    let twice = refusal(&of("--pool-indexers=a:1,a:1"));
    assert!(twice.starts_with("pool-indexers: \"http://a:1\" is given twice"), "{twice}");
    // Two streams of the same source would fence each other.
    let both = refusal(&[&of("--pool-indexers=b:1,a:1")[..], &["--indexers=a:1"]].concat());
    assert!(both.starts_with("pool-indexers: \"http://a:1\" is also in indexers"), "{both}");
    let without = refusal(&["--blocks-bytes=4KiB", "--pool-indexers=a:1"]);
    assert!(without.starts_with("pool-indexers: is set without blocks-volume"), "{without}");
}

#[test]
fn nixl_is_used_only_where_that_is_accepted() {
    let open = refusal(&["--blocks-bytes=4KiB", "--blocks-peer-backend=nixl"]);
    assert!(open.starts_with("blocks-peer-backend: nixl has neither TLS nor"), "{open}");
    let unused = refusal(&["--blocks-bytes=4KiB", "--blocks-peer-nixl-library=/a.so"]);
    assert!(unused.starts_with("blocks-peer-nixl-library: is set, but"), "{unused}");
}
