use super::*;
use crate::agent::AgentConfig;
use crate::blocks::{ArenaBacking, LayoutDimensions};
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
    "--blocks-host=bytes=1MiB",
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
    let why = "blocks-socket: is set, and the block manager is off: set blocks-host, too";
    assert_eq!(refused, why);
}

#[test]
fn sizes_become_blocks_of_whole_slots() {
    let config = blocks(&[
        "--blocks-geometry=bytes=6KiB",
        "--blocks-disk=file=/tmp/blocks,bytes=10MiB,offers-min=2",
        "--blocks-volume=url=file:///tmp/volume,bytes=20MiB",
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
    let config = blocks(&["--blocks-geometry=layers=2,inner-dim=64,dtype=bfloat16"]);
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
        "--blocks-geometry=layers=2,inner-dim=10,form=layer-separate,alignment=1KiB,tp-rank=5,tp-size=8,tp-replicas=2",
    ]);
    let dimensions = config.dimensions.expect("dimensions");
    assert_eq!(dimensions.parallel, TensorParallel { rank: 5, size: 8, replicas: 2 });
    assert_eq!(config.block_bytes, 2 << 10, "a layer has 640 bytes");
    let expected = "2 layers of 2 x 10 elements of 2 bytes, layer-separate, aligned to 1024, part 2 of 4 of the heads";
    assert!(config.description.contains(expected), "{}", config.description);
    // Agents with the same heads have the same blocks.
    let parts = "--blocks-geometry=layers=2,inner-dim=10";
    let mla = blocks(&[&format!("{parts},tp-size=8,tp-rank=3,tp-replicas=8")]);
    let single = blocks(&[parts]);
    assert_eq!(mla.fingerprint(), single.fingerprint());
}

/// Every change of the bytes' meaning changes the fingerprint on disks and volumes.
#[test]
fn blocks_of_another_model_layout_or_dtype_have_another_fingerprint() {
    let parts = "--blocks-geometry=layers=2,inner-dim=64";
    let same = blocks(&[parts]).fingerprint();
    assert_eq!(same, blocks(&[parts, "--blocks-eviction=lru"]).fingerprint());
    let geometry = |more: &str| format!("{parts},{more}");
    let others = [
        "--model=n".to_owned(),
        "--tenant=t".to_owned(),
        "--block-size=32".to_owned(),
        geometry("outer-dim=1"),
        geometry("dtype=bfloat16"),
        geometry("layout=layers-first"),
        geometry("form=layer-separate"),
        geometry("form=outer-separate"),
        geometry("tp-size=2"),
        geometry("tp-size=2,tp-rank=1"),
        geometry("dtype-bytes=4"),
        geometry("outer-dim=1,dtype-bytes=4"),
    ];
    let mut seen = vec![same];
    for other in &others {
        // A flag may be given once, so the earlier value is removed.
        let name = other.split_once('=').expect("a value").0;
        let few = FEW.iter().chain([&parts]).filter(|flag| !flag.starts_with(name));
        let arguments: Vec<_> = few.chain([&other.as_str()]).map(OsString::from).collect();
        let Ok(Action::Run(config, _)) = read(arguments) else { panic!("{other:?}") };
        let fingerprint = config.agent.blocks.expect("a block manager").fingerprint();
        assert!(!seen.contains(&fingerprint), "{other:?}");
        seen.push(fingerprint);
    }
}

#[test]
fn what_is_missing_or_wrong_is_named_with_the_fix() {
    let size = "--blocks-geometry=bytes=4KiB";
    let geometry = "blocks-geometry: must have layers and inner-dim, or bytes";
    let sources: Vec<_> = (1..=16).map(|port| format!("endpoint=tcp://a:{port}")).collect();
    let sources = format!("--source={}", sources.join(";"));
    for (arguments, expected) in [
        (&[][..], geometry),
        (&["--blocks-geometry=layers=2"], geometry),
        (
            &["--blocks-geometry=bytes=4KiB,layers=2"],
            "blocks-geometry bytes: does not go with layers and inner-dim: remove bytes, or remove layers and inner-dim",
        ),
        (
            &["--blocks-geometry=bytes=100"],
            "blocks-geometry bytes: is 100, must be a multiple of block-size, 16",
        ),
        (
            &["--blocks-geometry=bytes=0"],
            "blocks-geometry bytes: is 0, must be a multiple of block-size, 16",
        ),
        (
            &["--blocks-geometry=bytes=2MiB"],
            "blocks-host bytes: is 1048576, and one block takes 2097152 bytes: give more",
        ),
        (&["--blocks-geometry=layers=0,inner-dim=1"], "blocks-geometry layers: must not be 0"),
        (
            &["--blocks-geometry=layers=1,inner-dim=1,outer-dim=3"],
            "blocks-geometry outer-dim: is 3, the limit is 2",
        ),
        (
            &["--blocks-geometry=layers=1,inner-dim=1,dtype-bytes=3"],
            "blocks-geometry dtype-bytes: is 3, which is not a power of two",
        ),
        (
            &["--blocks-geometry=layers=4294967295,inner-dim=4294967295"],
            "blocks-geometry layers: block_bytes overflows 64 bits",
        ),
        (&["--blocks-geometry=layer=2"], "there is no key \"layer\": did you mean layers?"),
        (&["--blocks-geometry=layers=x"], "layers: \"x\": invalid digit found in string"),
        (&[size, "--blocks-rank=1024"], "blocks-rank: is 1024, must be 0 to 1023"),
        (
            &[size, "--source=endpoint=tcp://a:1"],
            "consolidate: is required with blocks-host and source",
        ),
        (
            &[size, &sources, "--consolidate"],
            "source: 16 and the block manager are too many, the limit is 16",
        ),
        (&[size, "--blocks-eviction=x"], "\"x\" is not lineage, lru or tinylfu"),
    ] {
        let refused = refusal(arguments);
        assert!(refused.contains(expected), "{arguments:?}: {refused}");
    }
}

#[test]
fn what_is_missing_or_wrong_in_a_tier_is_named_with_the_fix() {
    let size = "--blocks-geometry=bytes=4KiB";
    for (arguments, expected) in [
        (
            &[size, "--blocks-disk=file=/x"][..],
            "blocks-disk bytes: is required with blocks-disk file: state a size",
        ),
        (
            &[size, "--blocks-disk=bytes=1MiB"],
            "blocks-disk file: is required with blocks-disk bytes: state a place",
        ),
        (
            &[size, "--blocks-volume=url=s3://x"],
            "blocks-volume bytes: is required with blocks-volume url",
        ),
        (
            &[size, "--blocks-volume=url=s3://x,byte=1MiB"],
            "blocks-volume: there is no key \"byte\": did you mean bytes?",
        ),
        (&[size, "--blocks-volume=name=x"], "blocks-volume name: needs url beside it"),
        (
            &[size, "--storage-events=enabled=true,interval=61s"],
            "storage-events interval: is 61s, must be 60s or less",
        ),
    ] {
        let refused = refusal(arguments);
        assert!(refused.contains(expected), "{arguments:?}: {refused}");
    }
}

#[test]
fn layouts_that_cannot_be_are_refused_by_the_option() {
    for (keys, expected) in [
        ("bytes=4KiB,tp-size=2", "tp-size: needs layers and inner-dim in place of bytes"),
        ("layers=2,inner-dim=4,tp-size=0", "tp-size: must not be 0"),
        ("layers=2,inner-dim=4,tp-rank=1", "tp-rank: is 1, the limit is 0"),
        ("layers=2,inner-dim=4,tp-size=2000", "tp-size: is 2000, the limit is 1024"),
        ("layers=2,inner-dim=4,tp-replicas=2", "tp-replicas: "),
        ("layers=2,inner-dim=4,alignment=64", "alignment: has no effect on contiguous"),
        (
            "layers=2,inner-dim=4,form=layer-separate,alignment=48",
            "alignment: is 48, which is not a power of two",
        ),
        (
            "layers=2,inner-dim=4,form=layer-separate,alignment=8KiB",
            "alignment: is 8192, the limit is 4096",
        ),
        (
            "layers=2,inner-dim=4,form=x",
            "form: \"x\" is not contiguous, layer-separate or outer-separate",
        ),
    ] {
        let refused = refusal(&[&format!("--blocks-geometry={keys}")]);
        assert!(refused.contains("blocks-geometry") && refused.contains(expected), "{refused}");
    }
    for (keys, expected) in [
        ("bytes=1MiB,threads=0", "blocks-host threads: is 0, must be 1 to 256"),
        ("bytes=1MiB,arena=x", "arena: \"x\" is not memfd, private, locked or a path from /"),
    ] {
        let host = format!("--blocks-host={keys}");
        let arguments = [&FEW[..5], &["--blocks-geometry=bytes=4KiB", &host]].concat();
        let refused = read(arguments.iter().map(OsString::from)).expect_err("refused").to_string();
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn keys_of_a_volume_are_printed_nowhere() {
    let volume = [
        "--blocks-geometry=bytes=4KiB",
        "--blocks-volume=url=s3://user:hidden@bucket/prefix,bytes=1GiB",
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
    let option = "--blocks-volume-option=hidden";
    let refused = refusal(&[volume[0], "--blocks-volume=url=s3://x,bytes=1GiB", option]);
    assert_eq!(refused, "blocks-volume-option: is no key=value");
    for wrong in ["url=s3://user:hid,hidden@bucket", "url=s3://user:hidden@bucket,hidden=1"] {
        let refused = refusal(&[volume[0], &format!("--blocks-volume={wrong}")]);
        assert!(refused.starts_with("blocks-volume: must be url=URL,bytes=BYTES"), "{refused}");
        assert!(!refused.contains("hidden"), "{refused}");
    }
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
    pool_of(&[&["--blocks-geometry=bytes=4KiB"], arguments].concat())
}

fn pool_of(arguments: &[&str]) -> String {
    let config = agent(arguments);
    let registered = config.registration.expect("it registers itself").pools;
    let [pool] = &registered[..] else { panic!("one pool: {registered:?}") };
    assert_eq!(config.blocks.expect("blocks").pool(), Ok(Some(pool.clone())));
    pool.as_str().to_owned()
}

/// Agents that share a volume name the same pool, unless their blocks differ.
#[test]
fn a_volume_is_a_pool_of_the_worker() {
    let volume = |keys: &str| pool(&[&format!("--blocks-volume=bytes=1GiB,{keys}")]);
    let url = "url=s3://user:hidden@bucket/prefix";
    let by_url = volume(url);
    assert!(by_url.starts_with("volume:s3://user:***@bucket/prefix#"), "{by_url}");
    let other = "url=file:///mnt/kv";
    let named = volume(&format!("{url},name=kv"));
    assert_eq!(named, volume(&format!("{other},name=kv")));
    assert_ne!(volume(url), volume(other));
    let layout = "--blocks-geometry=bytes=4KiB,layout=heads-first";
    assert_ne!(named, pool_of(&[layout, &format!("--blocks-volume=bytes=1GiB,{url},name=kv")]));
    let long = volume(&format!("url=s3://bucket/{}", "x".repeat(300)));
    assert!(long.len() < 40, "{long}");
    let without =
        agent(&["--blocks-geometry=bytes=4KiB"]).registration.expect("it registers itself");
    assert_eq!(without.pools, []);
}

#[test]
fn the_pool_is_published_to_other_shards_too() {
    let volume = "--blocks-volume=url=file:///mnt/kv,bytes=1GiB";
    let of = |others| ["--blocks-geometry=bytes=4KiB", volume, others];
    let others = agent(&of("--pool-indexers=http://a:1,http://b:1"));
    assert_eq!(others.pool_indexers, ["http://a:1", "http://b:1"]);
    let twice = refusal(&of("--pool-indexers=a:1,a:1"));
    assert!(twice.starts_with("pool-indexers: \"http://a:1\" is given twice"), "{twice}");
    // Two streams of the same source would fence each other.
    let both = refusal(&[&of("--pool-indexers=b:1,a:1")[..], &["--indexers=a:1"]].concat());
    assert!(both.starts_with("pool-indexers: \"http://a:1\" is also in indexers"), "{both}");
    let without = refusal(&["--blocks-geometry=bytes=4KiB", "--pool-indexers=a:1"]);
    assert!(without.starts_with("pool-indexers: is set without blocks-volume"), "{without}");
}

#[test]
fn nixl_is_used_only_where_that_is_accepted() {
    let size = "--blocks-geometry=bytes=4KiB";
    let open = refusal(&[size, "--blocks-peer=backend=nixl"]);
    assert!(open.starts_with("blocks-peer backend: nixl has neither TLS nor"), "{open}");
    let unused = refusal(&[size, "--blocks-peer=nixl-library=/a.so"]);
    assert!(unused.starts_with("blocks-peer nixl-library: is set, but"), "{unused}");
}

/// Options of the release before, which are keys of other options now.
const FORMER: [&str; 21] = [
    "--blocks-host-bytes=1MiB",
    "--blocks-arena=private",
    "--blocks-threads=2",
    "--blocks-layers=2",
    "--blocks-inner-dim=64",
    "--blocks-dtype=bfloat16",
    "--blocks-form=layer-separate",
    "--blocks-alignment=64",
    "--blocks-tp-rank=1",
    "--blocks-tp-size=2",
    "--blocks-disk=/tmp/a=b,c",
    "--blocks-disk-bytes=2MiB",
    "--blocks-disk-direct=false",
    "--blocks-volume=s3://user:hidden@bucket/prefix",
    "--blocks-volume-bytes=1GiB",
    "--blocks-volume-timeout=5s",
    "--storage-volume-name=kv",
    "--storage-events",
    "--storage-batch-interval=100ms",
    "--blocks-peer-listen=127.0.0.1:7",
    "--blocks-peer-backend=tcp",
];

/// A configuration as text, without the times at which its rate limits began.
fn shown(config: &impl fmt::Debug) -> String {
    let text = format!("{config:?}");
    let mut parts = text.split("begin: Instant");
    let first = parts.next().unwrap_or_default();
    let rest = parts.filter_map(|part| Some(part.split_once('}')?.1));
    std::iter::once(first).chain(rest).collect()
}

#[test]
fn options_of_the_release_before_have_the_same_effect() {
    let former = [&FEW[..5], &FORMER].concat();
    let Ok(Action::Run(former, warnings)) = read(former.iter().map(OsString::from)) else {
        panic!("refused")
    };
    let now = [
        "--blocks-host=bytes=1MiB,arena=private,threads=2",
        "--blocks-geometry=layers=2,inner-dim=64,dtype=bfloat16,form=layer-separate,alignment=64,tp-rank=1,tp-size=2",
        "--blocks-disk={ file = \"/tmp/a=b,c\", bytes = \"2MiB\", direct = false }",
        "--blocks-volume=url=s3://user:hidden@bucket/prefix,bytes=1GiB,timeout=5s,name=kv",
        "--storage-events=enabled=true,interval=100ms",
        "--blocks-peer=listen=127.0.0.1:7",
    ];
    let now = [&FEW[..5], &now].concat();
    let Ok(Action::Run(now, none)) = read(now.iter().map(OsString::from)) else {
        panic!("refused")
    };
    assert_eq!(shown(&former.agent.blocks), shown(&now.agent.blocks));
    let plain = ["--blocks-disk=", "--blocks-volume=", "--storage-events"];
    let renamed = FORMER.iter().filter(|flag| !plain.iter().any(|at| flag.starts_with(at)));
    assert_eq!((warnings.len(), none.len()), (renamed.count(), 0), "{warnings:?}");
    let text = "--blocks-disk-bytes is replaced by --blocks-disk bytes=VALUE";
    assert!(warnings.iter().any(|warning| warning.starts_with(text)), "{warnings:?}");
    assert!(!format!("{warnings:?}").contains("hidden"), "{warnings:?}");
}

/// What is printed for former options is a file without them.
#[test]
fn former_options_are_printed_as_keys() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("agent.toml");
    let config = format!("--config={}", path.display());
    let file = "blocks-layers = 2\nblocks-inner-dim = 64\nblocks-host-bytes = 1048576\n\
                [blocks-disk]\nfile = \"/d\"\nbytes = 2097152\ndirect = false\n";
    std::fs::write(&path, file).expect("a file");
    let print = |arguments: &[&str]| {
        let arguments = [&FEW[..5], arguments, &[&config, "--print-config"]].concat();
        match read(arguments.iter().map(OsString::from)) {
            Ok(Action::Print(text)) => text,
            other => panic!("{other:?}"),
        }
    };
    let printed = print(&["--blocks-disk-offers-min=3"]);
    for line in [
        "blocks-host = \"bytes=1MiB,arena=memfd,threads=4\"",
        "blocks-disk = \"file=/d,bytes=2MiB,direct=false,offers-min=3\"",
        "blocks-volume = \"offers-min=1,timeout=30s,search-interval=600s\"",
    ] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
    let options = printed.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>();
    assert_eq!(printed.lines().count() - options.len(), 4, "one comment for each: {printed}");
    std::fs::write(&path, options.join("\n")).expect("a file");
    assert_eq!(print(&[]).lines().collect::<Vec<_>>(), options);
}
