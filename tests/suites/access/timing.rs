//! The time of an answer does not say whether another tenant's model is there.

use crate::calls::Caller;
use crate::fixture;
use anyhow::{Context, Result, ensure};
use kvasir_proto::pb;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::Duration;
use tokio::time::Instant;
use tonic::Code;

/// Queries of one comparison, of both kinds together.
const QUERIES: usize = 10_000;
/// Below this probability, the two kinds of queries are held to take different times.
const P_MIN: f64 = 0.01;
/// Equal times look different in one comparison of a hundred. A difference that is there shows in each, so that all of three
/// failing is no chance.
const COMPARISONS: u64 = 3;

/// The probability that two samples of one distribution differ at least as much: the test of Kolmogorov and Smirnov for two
/// samples, by its limit for large ones.
fn same_distribution(a: &mut [Duration], b: &mut [Duration]) -> f64 {
    a.sort_unstable();
    b.sort_unstable();
    let mut at = 0;
    let mut bt = 0;
    let mut distance = 0.0_f64;
    let share = |part: usize, all: usize| part as f64 / all as f64;
    while at < a.len() && bt < b.len() {
        let value = a[at].min(b[bt]);
        at += a[at..].iter().take_while(|time| **time <= value).count();
        bt += b[bt..].iter().take_while(|time| **time <= value).count();
        distance = distance.max((share(at, a.len()) - share(bt, b.len())).abs());
    }
    let n = a.len() as f64;
    let m = b.len() as f64;
    let lambda = distance * (n * m / (n + m)).sqrt();
    if lambda < 0.2 {
        return 1.0;
    }
    let term = |k: i32| {
        let sign = if k % 2 == 1 { 1.0 } else { -1.0 };
        sign * (-2.0 * f64::from(k * k) * lambda * lambda).exp()
    };
    (2.0 * (1..=100).map(term).sum::<f64>()).clamp(0.0, 1.0)
}

fn query(tenant: &str) -> pb::FindMatchesRequest {
    let model = "m1".to_owned();
    let tenant = tenant.to_owned();
    pb::FindMatchesRequest { model, tenant, local_hashes: (0..64).collect(), ..Default::default() }
}

/// Asks in random order, and returns the times of both.
async fn compare(caller: &Caller, tenants: [&str; 2], seed: u64) -> Result<[Vec<Duration>; 2]> {
    let queries = tenants.map(query);
    let mut times = [Vec::new(), Vec::new()];
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for _ in 0..QUERIES {
        let at = usize::from(rng.random::<bool>());
        let begin = Instant::now();
        let answer = caller.call("/kvasir.v1.Indexer/FindMatches", &queries[at]).await;
        times[at].push(begin.elapsed());
        let code = answer.map_or_else(|status| status.code(), |_answer| Code::Ok);
        let wanted = if tenants[at] == "a" { Code::Ok } else { Code::PermissionDenied };
        ensure!(code == wanted, "tenant {}: {code:?}", tenants[at]);
    }
    Ok(times)
}

#[tokio::test]
async fn a_denied_query_takes_as_long_whether_or_not_the_model_is_there() -> Result<()> {
    let (mut index, _folder) = fixture::index(&[]).await?;
    for (tenant, token) in [("a", "publish-a"), ("b", "publish-b")] {
        let caller = Caller::connect(index.addresses.grpc, Some(token)).await?;
        let request = pb::RegisterWorkerRequest {
            worker_id: "w0".to_owned(),
            model: "m1".to_owned(),
            tenant: tenant.to_owned(),
            block_size: 4,
            ..Default::default()
        };
        caller.call("/kvasir.v1.Indexer/RegisterWorker", &request).await?;
    }
    let caller = Caller::connect(index.addresses.grpc, Some("query-a")).await?;
    let mut seen = Vec::new();
    for seed in 0..COMPARISONS {
        let [mut there, mut nowhere] = compare(&caller, ["b", "c"], seed).await?;
        seen.push(same_distribution(&mut there, &mut nowhere));
        if seen.last().context("a comparison")? > &P_MIN {
            index.stop().await;
            println!("p = {seen:?}");
            return Ok(());
        }
    }
    anyhow::bail!("the times differ: p = {seen:?} of {QUERIES} queries each, seeds from 0")
}

#[test]
fn the_comparison_tells_what_differs_from_what_does_not() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut sample = |from: u64| -> Vec<_> {
        let times =
            (0..QUERIES / 2).map(|_| Duration::from_nanos(from + rng.random_range(0..100_000)));
        times.collect()
    };
    let mut a = sample(200_000);
    let mut b = sample(200_000);
    let mut later = sample(204_000);
    assert!(same_distribution(&mut a, &mut b) > P_MIN);
    // Four hundredths of the spread are enough.
    assert!(same_distribution(&mut a, &mut later) < P_MIN);
}
