//! Fetch plans in requests to engines: blocks to fetch from other workers' agents, in the format of the engine's KV
//! connector.

use router_client::route::FetchPlan;
use serde_json::{Map, Value, json};

/// Field in which engines and gateway exchange transfer parameters, in requests and answers.
pub(super) const PARAMETERS: &str = "kv_transfer_params";
/// The plan's key among the transfer parameters.
const PLAN: &str = "kvasir_fetch";

/// Adds a fetch plan to the transfer parameters of a request. Keeps existing parameters.
pub(super) fn add_plan(body: &mut Map<String, Value>, plan: &FetchPlan) {
    let parameters = body.entry(PARAMETERS).or_insert_with(|| json!({}));
    if parameters.is_null() {
        *parameters = json!({});
    }
    // Any other value from a client is left for the engine to reject.
    if let Some(parameters) = parameters.as_object_mut() {
        parameters.insert(PLAN.to_owned(), json_of(plan));
    }
}

/// Encodes a plan to fetch blocks, for the engine's request.
fn json_of(plan: &FetchPlan) -> Value {
    let peers: Vec<_> = plan.peers.iter().map(|peer| peer.address.as_str()).collect();
    json!({
        "first_block": plan.first_block,
        "blocks": plan.blocks,
        "recompute_blocks": plan.recompute_blocks,
        "peers": peers,
        "expected_ms": plan.expected.as_secs_f64() * 1e3,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_proto::types::{WorkerId, WorkerKey};
    use router_client::route::{FetchPeer, Rate};
    use std::time::Duration;

    fn plan() -> FetchPlan {
        let worker = WorkerKey { worker: WorkerId::new("w").expect("a name"), rank: 0 };
        let address = "http://a:1".to_owned();
        FetchPlan {
            first_block: 2,
            blocks: 6,
            recompute_blocks: 1,
            peers: vec![FetchPeer { worker, address, blocks: 6 }],
            expected: Duration::from_micros(1_500),
            compute: Duration::from_millis(9),
            block_bytes: 4_096,
            bandwidth: Rate::default(),
            prefill: Rate::default(),
        }
    }

    #[test]
    fn a_plan_joins_the_parameters_that_are_there() {
        let expected = json!({
            "first_block": 2, "blocks": 6, "recompute_blocks": 1, "peers": ["http://a:1"], "expected_ms": 1.5,
        });
        for (before, after) in [
            (json!({}), json!({"kv_transfer_params": {"kvasir_fetch": expected}})),
            (
                json!({"kv_transfer_params": null}),
                json!({"kv_transfer_params": {"kvasir_fetch": expected}}),
            ),
            (
                json!({"kv_transfer_params": {"a": 1}}),
                json!({"kv_transfer_params": {"a": 1, "kvasir_fetch": expected}}),
            ),
            (json!({"kv_transfer_params": "x"}), json!({"kv_transfer_params": "x"})),
        ] {
            let Value::Object(mut body) = before else { panic!("an object") };
            add_plan(&mut body, &plan());
            assert_eq!(Value::Object(body), after);
        }
    }
}
