use super::read_metrics;
use crate::scrape::{ReadError, ScrapedEngine};
use kvasir_proto::types::{DpRank, WorkerMetrics};
use std::collections::BTreeMap;

fn read(engine: ScrapedEngine, text: &str) -> Result<BTreeMap<DpRank, WorkerMetrics>, ReadError> {
    read_metrics(engine, text.as_bytes(), 16)
}

/// Two engines of one vLLM process, as vLLM writes them.
const VLLM: &str = "\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 24.0
vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 72.0
vllm:num_requests_waiting{engine=\"1\",model_name=\"m\"} 0.0
vllm:num_requests_waiting_by_reason{engine=\"0\",model_name=\"m\",reason=\"capacity\"} 72.0
vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.75
vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"m\"} 0.0
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine=\"0\",model_name=\"m\"} 4e+06
vllm:prefix_cache_queries_total{engine=\"1\",model_name=\"m\"} 0.0
vllm:prefix_cache_queries_created{engine=\"0\",model_name=\"m\"} 1.76e+09
vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"m\"} 1e+06
vllm:prefix_cache_hits_total{engine=\"1\",model_name=\"m\"} 0.0
vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",engine=\"0\",num_gpu_blocks=\"1000\",num_gpu_blocks_override=\"None\"} 1.0
vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",engine=\"1\",num_gpu_blocks=\"None\",num_gpu_blocks_override=\"None\"} 1.0
vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"+Inf\",model_name=\"m\"} 5.0
";

#[test]
fn vllm_is_understood() {
    let ranks = read(ScrapedEngine::Vllm, VLLM).expect("metrics");
    let zero = WorkerMetrics {
        num_requests_waiting: Some(72),
        gpu_cache_usage_perc: Some(0.75),
        gpu_prefix_cache_hit_rate: Some(0.25),
        request_active_slots: Some(24),
        request_total_slots: None,
        kv_active_blocks: Some(750),
        kv_total_blocks: Some(1_000),
    };
    // Before the first lookup, with an unknown number of blocks.
    let one = WorkerMetrics {
        num_requests_waiting: Some(0),
        gpu_cache_usage_perc: Some(0.0),
        request_active_slots: Some(0),
        ..WorkerMetrics::UNKNOWN
    };
    assert_eq!(ranks, BTreeMap::from([(0, zero), (1, one)]));
}

#[test]
fn the_blocks_of_all_ranks_of_vllm_are_shared_out() {
    let text = VLLM.replace("num_gpu_blocks=\"None\"", "num_gpu_blocks=\"1000\"");
    let ranks = read(ScrapedEngine::Vllm, &text).expect("metrics");
    let blocks = ranks.values().map(|at| (at.kv_total_blocks, at.kv_active_blocks));
    assert_eq!(blocks.collect::<Vec<_>>(), [(Some(500), Some(375)), (Some(500), Some(0))]);
}

#[test]
fn older_names_of_vllm_are_understood() {
    let text = "vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.5\n\
        vllm:gpu_prefix_cache_queries_total{model_name=\"m\"} 10.0\n\
        vllm:gpu_prefix_cache_hits_total{model_name=\"m\"} 5.0\n";
    let expected = WorkerMetrics {
        gpu_cache_usage_perc: Some(0.5),
        gpu_prefix_cache_hit_rate: Some(0.5),
        ..WorkerMetrics::UNKNOWN
    };
    let older = BTreeMap::from([(0, expected)]);
    assert_eq!(read(ScrapedEngine::Vllm, text), Ok(older.clone()));
    // Intermediate versions have both names.
    let both = format!("{text}{}", text.replace(":gpu_", ":").replace(":cache", ":kv_cache"));
    assert_eq!(read(ScrapedEngine::Vllm, &both), Ok(older));
}

/// Two ranks of SGLang with data-parallel attention, one with priorities.
const SGLANG: &str = "\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",moe_ep_rank=\"0\",pp_rank=\"0\",priority=\"\",tp_rank=\"0\"} 16.0
sglang:num_running_reqs{dp_rank=\"1\",engine_type=\"unified\",model_name=\"m\",moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"2\"} 2.0
sglang:num_queue_reqs{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",moe_ep_rank=\"0\",pp_rank=\"0\",priority=\"\",tp_rank=\"0\"} 3.0
sglang:num_queue_reqs{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",moe_ep_rank=\"0\",pp_rank=\"0\",priority=\"9\",tp_rank=\"0\"} 4.0
sglang:num_queue_reqs{dp_rank=\"1\",engine_type=\"unified\",model_name=\"m\",moe_ep_rank=\"0\",pp_rank=\"0\",tp_rank=\"2\"} 0.0
sglang:token_usage{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",moe_ep_rank=\"0\",pp_rank=\"0\",priority=\"\",tp_rank=\"0\"} 0.28
sglang:cache_hit_rate{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",moe_ep_rank=\"0\",pp_rank=\"0\",priority=\"\",tp_rank=\"0\"} 0.007507552643049313
sglang:num_used_tokens{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",moe_ep_rank=\"0\",pp_rank=\"0\",priority=\"\",tp_rank=\"0\"} 161.0
sglang:num_used_tokens{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",moe_ep_rank=\"0\",pp_rank=\"0\",priority=\"\",tp_rank=\"1\"} 161.0
sglang:max_total_num_tokens{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",moe_ep_rank=\"0\",pp_rank=\"0\",priority=\"\",tp_rank=\"0\"} 575.0
sglang:gen_throughput{dp_rank=\"0\",engine_type=\"unified\",model_name=\"m\",moe_ep_rank=\"0\",pp_rank=\"0\",priority=\"\",tp_rank=\"0\"} 86.5
sglang:fwd_occupancy{dp_rank=\"0\"} NaN
";

#[test]
fn sglang_is_understood() {
    let ranks = read(ScrapedEngine::Sglang, SGLANG).expect("metrics");
    let zero = WorkerMetrics {
        num_requests_waiting: Some(3),
        gpu_cache_usage_perc: Some(0.28),
        gpu_prefix_cache_hit_rate: Some(0.007_507_552_643_049_313),
        request_active_slots: Some(16),
        request_total_slots: None,
        kv_active_blocks: Some(11),
        kv_total_blocks: Some(35),
    };
    let one = WorkerMetrics {
        num_requests_waiting: Some(0),
        request_active_slots: Some(2),
        ..WorkerMetrics::UNKNOWN
    };
    assert_eq!(ranks, BTreeMap::from([(0, zero), (1, one)]));
    // An incomplete last block must not raise the count above the total.
    let full = "sglang:max_total_num_tokens 575\nsglang:num_used_tokens 575\n";
    let full = read(ScrapedEngine::Sglang, full).expect("metrics").remove(&0).expect("a rank");
    assert_eq!((full.kv_active_blocks, full.kv_total_blocks), (Some(35), Some(35)));
}

#[test]
fn what_is_no_number_is_not_known() {
    let text = "sglang:token_usage NaN\nsglang:num_queue_reqs 1\n";
    let rank = read(ScrapedEngine::Sglang, text).expect("metrics").remove(&0).expect("a rank");
    let expected = WorkerMetrics { num_requests_waiting: Some(1), ..WorkerMetrics::UNKNOWN };
    assert_eq!(rank, expected);
}

#[test]
fn metrics_that_make_no_sense_say_why() {
    for (engine, text, expected) in [
        (
            ScrapedEngine::Vllm,
            SGLANG,
            "the page has no metric of vLLM: check the kind of engine, and that its metrics are enabled",
        ),
        (
            ScrapedEngine::Sglang,
            VLLM,
            "the page has no metric of SGLang: check the kind of engine, and that its metrics are enabled",
        ),
        (
            ScrapedEngine::Vllm,
            "",
            "the page has no metric of vLLM: check the kind of engine, and that its metrics are enabled",
        ),
        (
            ScrapedEngine::Vllm,
            "vllm:num_requests_waiting{engine=\"1024\"} 1",
            "line 1: label engine is \"1024\", must be a rank, 0 to 1023",
        ),
        (
            ScrapedEngine::Vllm,
            "vllm:num_requests_waiting{engine=\"0\"} -1",
            "the waiting requests of rank 0 is -1, which is not a valid count",
        ),
        (
            ScrapedEngine::Sglang,
            "sglang:num_running_reqs{dp_rank=\"2\"} +Inf",
            "the running requests of rank 2 is inf, which is not a valid count",
        ),
        (
            ScrapedEngine::Vllm,
            "x 1\nvllm:num_requests_waiting one",
            "line 2: the value is not a number",
        ),
    ] {
        assert_eq!(read(engine, text).expect_err(expected).to_string(), expected);
    }
    let error = read_metrics(ScrapedEngine::Vllm, &[0xff], 16).expect_err("no text");
    assert_eq!(error, ReadError::NotText);
}
