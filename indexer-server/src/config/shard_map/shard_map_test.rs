use super::*;
use kvasir_proto::shard::ShardCount;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const TOML: &str = "version = 4 # the fourth
shards = 3
buckets = [
    { first = 0, last = 85, shard = 0 },
    { first = 86, last = 170, shard = 1 },
    { first = 171, last = 255, shard = 2 },
]
moving = [
    { first = 16, last = 31, to_shard = 2 },
]
";
const LINES: &str = "version 4 # the fourth\n\nshards 3\nbuckets 0-85 shard 0\n\
                     buckets 86-170 shard 1\nbuckets 171-255 shard 2\nmoving 16-31 shard 2\n";

#[test]
fn both_formats_are_the_same_map() {
    let read = parse(TOML).expect("TOML");
    assert_eq!(read.warning, None);
    let map = read.map;
    assert_eq!((map.version(), map.shards().get()), (4, 3));
    assert_eq!((map.owner(16), map.taker(16), map.taker(15)), (0, Some(2), None));
    assert_eq!(shard_map_toml(&map), TOML.replace(" # the fourth", ""));

    let old = parse(LINES).expect("lines");
    assert_eq!(old.map, map);
    let warning = old.warning.expect("the format is old");
    let (text, toml) = warning.split_once('\n').expect("the text, then TOML");
    assert!(text.contains("release 0.3 will not read"), "{text}");
    assert_eq!(parse(toml), Ok(ReadMap { map, warning: None }));
}

#[test]
fn tables_and_comments_are_toml_too() {
    let text =
        "# [buckets]\nshards = 1\nversion = 1\n[[buckets]]\nfirst = 0\nlast = 255\nshard = 0";
    let map = parse(text).expect("TOML").map;
    let even = ShardMap::even(ShardCount::new(1).expect("a number"));
    assert_eq!(map, even.with_version(1));
}

fn any_map(random: &mut ChaCha8Rng) -> ShardMap {
    let shards_max = if random.random_bool(0.1) { 256 } else { 9 };
    let shards = random.random_range(1..=shards_max);
    let mut map = ShardMap::even(ShardCount::new(shards).expect("a number"));
    for _ in 0..random.random_range(0..600) {
        let bucket = random.random();
        let shard = random.random_range(0..shards);
        let is_moved = random.random_bool(0.7);
        let next = if is_moved { map.moved(bucket, shard) } else { map.moving(bucket, shard) };
        map = next.expect("a shard");
    }
    map.with_version(random.random::<u64>() >> random.random_range(0..64))
}

fn lines_of(map: &ShardMap) -> String {
    let mut text = format!("version {}\nshards {}\n", map.version(), map.shards());
    for shard in 0..=map.shards().last() {
        for (key, ranges) in [("buckets", map.owned(shard)), ("moving", map.taken(shard))] {
            let line = |range: &kvasir_proto::shard::BucketRange| {
                format!("{key} {}-{} shard {shard}\n", range.first, range.last)
            };
            text.extend(ranges.iter().map(line));
        }
    }
    text
}

#[test]
fn any_map_is_read_as_written() {
    for seed in 0..100 {
        let map = any_map(&mut ChaCha8Rng::seed_from_u64(seed));
        let toml = shard_map_toml(&map);
        assert!(toml.len() <= kvasir_proto::limits::SHARD_MAP_BYTES_MAX, "seed {seed}");
        assert_eq!(parse(&toml), Ok(ReadMap { map: map.clone(), warning: None }), "seed {seed}");
        assert_eq!(parse(&lines_of(&map)).map(|read| read.map), Ok(map), "seed {seed}");
    }
}

/// A changed byte gives a map or an error with a line, never a panic.
#[test]
fn damaged_texts_are_read_or_refused() {
    for seed in 0..2_000 {
        let random = &mut ChaCha8Rng::seed_from_u64(seed);
        let mut text = if random.random() { TOML } else { LINES }.as_bytes().to_vec();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..text.len());
            text[at] = random.random_range(0..128);
        }
        let text = String::from_utf8(text).expect("ASCII");
        if let Err(error) = parse(&text) {
            assert!(error.to_string().starts_with("line "), "seed {seed}: {error}");
        }
    }
}

#[track_caller]
fn check(text: &str, expected: &str) {
    assert_eq!(parse(text).expect_err(text).to_string(), expected, "{text}");
}

#[test]
fn bad_toml_is_refused_by_line_and_key() {
    let map = |entries: &str| format!("version = 1\nshards = 2\nbuckets = [\n{entries}\n]\n");
    let whole = map("{ first = 0, last = 255, shard = 0 },");
    check(
        &map("{ first = 0, last = 254, shard = 1 },"),
        "line 3: buckets: bucket 255 has no shard: assign it to one",
    );
    check(
        &map("{ first = 0, last = 256, shard = 1 },"),
        "line 4: buckets: last is 256, must be 0 to 255",
    );
    check(
        &map("\n{ first = 9, last = 8, shard = 1 },"),
        "line 5: buckets: first is 9, must be at most last, which is 8",
    );
    check(
        &map("{ first = 0, last = 9, shard = 0 },\n{ first = 9, last = 255, shard = 1 },"),
        "line 5: buckets: buckets 9 to 255 overlap line 4: list each bucket once",
    );
    check(
        &map("{ first = 0, last = 255, shard = 2 },"),
        "line 4: buckets: shard 2 is not one of 2 shards: they are numbered from 0, the last is 1",
    );
    check(
        &format!("{whole}moving = [{{ first = 1, last = 1, to_shard = 4294967296 }}]"),
        "line 6: moving: shard 4294967295 is not one of 2 shards: they are numbered from 0, the last is 1",
    );
    check(
        &whole.replace("shards = 2", "shards = 0"),
        "line 2: shards: the number of shards is 0, must be 1 to 256",
    );
}

#[test]
fn texts_that_are_no_map_are_refused_with_the_form() {
    let form = "write version, shards and buckets = [{ first = 0, last = 255, shard = 0 }], and optionally \
                moving = [{ first = 16, last = 31, to_shard = 1 }]; all values are whole numbers";
    for (text, expected) in [
        ("", "line 1: missing field `version`"),
        ("nonsense", "line 1: key with no value, expected `=`"),
        ("version = 1\nversion = 2", "line 2: duplicate key"),
        ("version = 1\nshard_count = 2", "line 2: unknown field `shard_count`"),
        (
            "version = 1\nshards = 2\nbuckets = [\n{ first = \"9\" }]",
            "line 4: invalid type: string \"9\"",
        ),
        ("version = -1", "line 1: invalid value: integer `-1`"),
        ("version -1", "line 1: key with no value"),
    ] {
        let refused = parse(text).expect_err(text).to_string();
        assert!(refused.starts_with(expected) && refused.ends_with(form), "{text:?}: {refused}");
    }
    let refused = parse("buckets = [\n{ first = \"9\" }]").expect_err("a text").to_string();
    assert!(refused.contains("in `buckets.first`"), "{refused}");
}

#[test]
fn bad_lines_are_refused() {
    let form = "write one of: version N, shards N, buckets A-B shard I, moving A-B shard I";
    check("version 1", "line 1: shards is missing: add a line with it");
    check("shards 1", "line 1: version is missing: add a line with it");
    check("version 1\nversion 1", "line 2: version is given twice: remove one");
    check("version 1\nshards -1", &format!("line 2: {form}"));
    check("version 1\n\nshards", &format!("line 3: {form}"));
    check("shards 2\nbuckets 1-2-3 shard 0", &format!("line 2: {form}"));
    check("shards 2\nbuckets 1 shard 0 x", &format!("line 2: {form}"));
    check(
        "version 1\nshards 2\nbuckets 0-256 shard 0",
        "line 3: buckets: last is 256, must be 0 to 255",
    );
    check(
        "version 1\nshards 2\nbuckets 0-9 shard 0",
        "line 3: buckets: bucket 10 has no shard: assign it to one",
    );
}
