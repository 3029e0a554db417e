use super::{LoadsQuery, WorkerLoad};
use crate::pb;
use std::time::Duration;

fn load() -> pb::WorkerLoad {
    pb::WorkerLoad {
        model: "m".to_owned(),
        tenant: "t".to_owned(),
        worker_id: "w".to_owned(),
        dp_rank: 1_023,
        num_requests_waiting: Some(0),
        gpu_cache_usage_perc: Some(1.0),
        gpu_prefix_cache_hit_rate: Some(0.0),
        request_active_slots: Some(8),
        request_total_slots: Some(8),
        kv_active_blocks: Some(0),
        kv_total_blocks: Some(u64::MAX),
        age_ms: 7,
    }
}

type Change = fn(&mut pb::WorkerLoad);

fn refusal(change: Change) -> String {
    let mut load = load();
    change(&mut load);
    let request = pb::ReportLoadRequest { load: Some(load) };
    WorkerLoad::try_from(request).expect_err("it is refused").to_string()
}

#[test]
fn what_is_within_its_range_comes_through_as_it_is() {
    let nothing = pb::WorkerLoad {
        num_requests_waiting: None,
        gpu_cache_usage_perc: None,
        gpu_prefix_cache_hit_rate: None,
        request_active_slots: None,
        request_total_slots: None,
        kv_active_blocks: None,
        kv_total_blocks: None,
        ..load()
    };
    // A count is checked against its total only if both are known.
    let half = pb::WorkerLoad { kv_total_blocks: None, kv_active_blocks: Some(9), ..load() };
    for message in [load(), nothing, half, pb::WorkerLoad { age_ms: u64::MAX, ..load() }] {
        let read = WorkerLoad::try_from(message.clone()).expect("valid");
        assert_eq!(pb::WorkerLoad::from(&read), message);
    }
}

#[test]
fn what_is_out_of_range_is_named() {
    let cases: [(Change, &str); 8] = [
        (
            |load| load.gpu_cache_usage_perc = Some(1.5),
            "load.gpu_cache_usage_perc is 1.5, must be 0 to 1",
        ),
        (
            |load| load.gpu_cache_usage_perc = Some(f64::NAN),
            "load.gpu_cache_usage_perc is NaN, must be 0 to 1",
        ),
        (
            |load| load.gpu_prefix_cache_hit_rate = Some(-0.1),
            "load.gpu_prefix_cache_hit_rate is -0.1, must be 0 to 1",
        ),
        (
            |load| load.request_active_slots = Some(9),
            "load.request_active_slots is 9, must be 0 to 8",
        ),
        (
            |load| (load.kv_active_blocks, load.kv_total_blocks) = (Some(3), Some(2)),
            "load.kv_active_blocks is 3, must be 0 to 2",
        ),
        (|load| load.dp_rank = 1_024, "load.dp_rank is 1024, must be 0 to 1023"),
        (|load| load.model.clear(), "load.model is required"),
        (|load| load.worker_id.clear(), "load.worker_id is required"),
    ];
    for (change, expected) in cases {
        assert_eq!(refusal(change), expected);
    }
    let nothing = WorkerLoad::try_from(pb::ReportLoadRequest { load: None });
    assert_eq!(nothing.expect_err("it is refused").to_string(), "load is required");
}

#[test]
fn the_interval_of_a_watch_is_bounded() {
    let ask = |min_interval_ms| {
        let model = "m".to_owned();
        let worker_id = "w".to_owned();
        LoadsQuery::try_from(pb::WatchLoadsRequest {
            model,
            worker_id,
            min_interval_ms,
            ..Default::default()
        })
    };
    let interval = |asked| ask(asked).expect("valid").min_interval;
    assert_eq!(interval(None), Duration::from_millis(100));
    assert_eq!(interval(Some(10)), Duration::from_millis(10));
    for interval in [0, 9, 60_001] {
        let error = ask(Some(interval)).expect_err("it is refused").to_string();
        assert_eq!(error, format!("min_interval_ms is {interval}, must be 10 to 60000"));
    }
}
