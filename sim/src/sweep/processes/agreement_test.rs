use super::*;

fn run(wait_millis: u64, hit_tokens: usize) -> Run {
    let served = Served {
        arrival: SECOND,
        begun: SECOND,
        first_token: SECOND + wait_millis * 1_000_000,
        end: 2 * SECOND,
        prompt_tokens: 1_000,
        hit_tokens,
        answer_tokens: 2,
        ..Served::default()
    };
    Run { served: vec![served; 20], computed_tokens: vec![1, 1] }
}

fn pair(wait_millis: u64, hit_tokens: usize, late: f64) -> Pair {
    let measured = Measured {
        run: run(wait_millis, hit_tokens),
        engines_ttft_mean: 0.4,
        lateness: Lateness { mean: late, ..Lateness::default() },
        index_delay: 0.002,
        probes: 3,
        uninformed: 0,
    };
    Pair { policy: Policy::Kv, twin: run(400, 500), measured }
}

fn agreement(pairs: Vec<Pair>) -> Agreement {
    let workload = "test".to_owned();
    Agreement { workload, load: 70.0, seed: 1, engines: 2, time_scale: 1.0, pairs }
}

#[test]
fn times_and_hits_have_to_agree() {
    assert_eq!(pair(430, 480, 0.0).verdict(), Verdict::Agrees);
    assert_eq!(pair(445, 480, 0.0).verdict(), Verdict::Deviates);
    assert_eq!(pair(355, 480, 0.0).verdict(), Verdict::Deviates);
    assert_eq!(pair(400, 440, 0.0).verdict(), Verdict::Deviates);
    let all = agreement(vec![pair(400, 500, 0.0), pair(400, 440, 0.0)]);
    assert_eq!(all.verdict(), Verdict::Deviates);
    assert!(all.check().is_err() && agreement(vec![pair(400, 500, 0.0)]).check().is_ok());
    assert!(all.text().contains("NO  kv: mean TTFT deviates by +0.0 %, hit tokens by -12.0 %"));
}

#[test]
fn late_arrivals_leave_no_verdict() {
    assert_eq!(pair(400, 500, 0.007).verdict(), Verdict::Agrees);
    let all = agreement(vec![pair(400, 500, 0.0), pair(400, 500, 0.009)]);
    assert_eq!(all.verdict(), Verdict::Unknown);
    assert!(all.text().contains("??  kv: no verdict"), "{}", all.text());
}

#[test]
fn clients_times_are_scaled_and_begin_when_requests_were_due() {
    let job = Job { arrival: 0, prompt_tokens: 300, answer_tokens: 5, names: Vec::new() };
    let due = Duration::from_secs(2);
    let request = Request {
        due,
        local_hashes: Vec::new(),
        token_ids: Vec::new(),
        prompt_tokens: 300,
        answer_tokens: 5,
        body: bytes::Bytes::new(),
    };
    let reply = Reply {
        number: 0,
        lateness: Duration::from_millis(10),
        engine: 1,
        is_informed: false,
        expected_tokens: 64,
        cached_tokens: 128,
        first_token: due + Duration::from_millis(100),
        end: due + Duration::from_millis(300),
    };
    let measured = Measured::new(&[job], &[4 * SECOND], &[request], &[reply], 2, 2.0);
    let [served] = measured.run.served[..] else { panic!("{measured:?}") };
    assert_eq!((served.arrival, served.first_token), (4 * SECOND, 4 * SECOND + SECOND / 5));
    assert_eq!((served.end - served.first_token, served.hit_tokens), (2 * SECOND / 5, 128));
    assert_eq!(measured.run.computed_tokens, [0, 300 - 128 + 4]);
    assert_eq!((measured.lateness.max, measured.uninformed), (0.02, 1));
}

#[test]
fn what_passes_outside_the_engines_is_the_rest() {
    let pair = pair(430, 500, 0.0);
    assert!((pair.outside() - 0.03).abs() < 1e-9 && pair.engines_ttft_deviation().abs() < 1e-9);
}
