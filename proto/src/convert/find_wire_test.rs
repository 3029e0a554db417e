use super::*;
use crate::convert::{QueryInput, QueryTokens, cursor};
use crate::types::{Cursor, Incarnation, Reason, SourceState, StateReason, WorkerId};
use prost::Message;
use std::time::Duration;

/// Pseudo-random numbers from the test's seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = self.0 ^ (self.0 >> 31);
        // Varints of all sizes, often zero.
        if mixed & 7 == 0 { 0 } else { mixed >> (self.0 % 63) }
    }

    fn small(&mut self) -> u32 {
        u32::try_from(self.next() & 0xffff_ffff).expect("32 bits")
    }

    fn answer(&mut self) -> FindAnswer {
        let matches = (0..self.next() % 4).map(|_| self.found()).collect();
        FindAnswer {
            query_blocks: self.small(),
            best_overlap_blocks: self.small(),
            block_size: self.small(),
            matches,
            restoring: (0..self.next() % 3).map(|_| self.worker()).collect(),
            pools: (0..self.next() % 3).map(|_| self.pool()).collect(),
            wants_next_tokens: self.next().is_multiple_of(2),
        }
    }

    fn state(&mut self) -> SourceState {
        const STATES: [SourceState; 6] = [
            SourceState::Exact,
            SourceState::CatchingUp,
            SourceState::Gap,
            SourceState::Partial,
            SourceState::Degraded,
            SourceState::Cold,
        ];
        STATES[usize::try_from(self.next() % 6).expect("small")]
    }

    fn age(&mut self) -> Option<Duration> {
        (!self.next().is_multiple_of(3)).then(|| Duration::from_millis(self.next()))
    }

    fn pool(&mut self) -> PoolState {
        PoolState {
            pool: self.worker(),
            held_blocks: self.small(),
            state: self.state(),
            connected: self.next().is_multiple_of(2),
            lag_batches: self.next(),
            verified_age: self.age(),
        }
    }

    fn worker(&mut self) -> WorkerId {
        let name = "w".repeat(1 + usize::from(self.next().to_le_bytes()[0]));
        WorkerId::new(&name).expect("a name")
    }

    fn found(&mut self) -> WorkerMatch {
        let sequence = self.next();
        let applied =
            Cursor { incarnation: Incarnation(self.next().into()), sequence, fingerprint: None };
        WorkerMatch {
            worker: self.worker(),
            rank: self.small(),
            blocks: self.small(),
            main_group_blocks: self.small(),
            reusable_tokens: self.next(),
            speculative_blocks: self.small(),
            by_tier: [self.small(), self.small(), self.small()],
            by_best_tier: [self.small(), self.small(), self.small()],
            pool_blocks: self.small(),
            state: self.state(),
            applied: (!self.next().is_multiple_of(3)).then_some(applied),
            lag_batches: self.next(),
            verified_age: self.age(),
            shed_blocks: self.next(),
            connected: self.next().is_multiple_of(2),
            may_be_high: self.next().is_multiple_of(2),
            reasons: self.reasons(),
        }
    }

    fn reasons(&mut self) -> Vec<(StateReason, Option<Duration>)> {
        let mut reasons = Vec::new();
        for _ in 0..self.next() % 3 {
            let all = Reason::ALL.len() as u64;
            let reason = Reason::ALL[usize::try_from(self.next() % all).expect("small")];
            let count = 1 + self.next();
            let since = Duration::ZERO;
            let example = self.text(false).as_str().into();
            reasons.push((StateReason { reason, count, example, since }, self.age()));
        }
        reasons
    }

    fn text(&mut self, empty: bool) -> String {
        let length = usize::try_from(self.next() % 5).expect("small");
        if empty { String::new() } else { "aé日".chars().cycle().take(length).collect() }
    }

    fn request(&mut self) -> pb::FindMatchesRequest {
        let input = self.next() % 5;
        let tokens = input < 2 || input == 4;
        let mut list = |wanted: bool| -> Vec<u64> {
            let length = if wanted { 1 + self.next() % 40 } else { 0 };
            (0..length).map(|_| self.next()).collect()
        };
        let ids = list(input == 0);
        let bytes = list(input == 1);
        let local_hashes = list(input == 2);
        let sequence_hashes = list(input == 3);
        let wide_token_ids = list(input == 4);
        let prompt_tokens =
            (!tokens && self.next().is_multiple_of(2)).then(|| 1 + self.small() % 1_000);
        let next_tokens = if self.next().is_multiple_of(2) { local_hashes.len() } else { 0 };
        let next_tokens_le = vec![7; 4 * next_tokens].into();
        let tiers = self.next() % 4;
        let workers = self.next() % 3;
        pb::FindMatchesRequest {
            request_id: self.next(),
            model: "model".to_owned(),
            tenant: self.text(false),
            lora_name: self.text(!tokens),
            cache_salt: self.text(!tokens),
            block_size: (!self.next().is_multiple_of(2)).then_some(16),
            hash_scheme: (!self.next().is_multiple_of(2))
                .then(|| crate::hash::HASH_SCHEME.to_owned()),
            token_ids: ids
                .into_iter()
                .map(|id| u32::try_from(id >> 32).expect("32 bits"))
                .collect(),
            token_ids_le: bytes.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<_>>().into(),
            local_hashes,
            sequence_hashes,
            multimodal: Vec::new(),
            tiers: (0..tiers).map(|tier| 1 + i32::try_from(tier).expect("small") % 3).collect(),
            worker_ids: (0..workers).map(|worker| format!("w{worker}")).collect(),
            minimum_overlap_blocks: (!self.next().is_multiple_of(2)).then(|| self.small()),
            top_k: self.small(),
            shared: self.next().is_multiple_of(2),
            next_tokens_le,
            wide_token_ids,
            explain: self.next().is_multiple_of(2),
            prompt_tokens,
        }
    }
}

fn tiers([device, host, disk]: [u32; 3]) -> pb::BlocksByTier {
    pb::BlocksByTier { device, host, disk }
}

/// Converts an answer to its generated message.
fn message_of(answer: &FindAnswer, request_id: u64) -> pb::FindMatchesResponse {
    let matches = answer.matches.iter().map(|found| pb::WorkerMatch {
        worker_id: found.worker.as_str().to_owned(),
        dp_rank: found.rank,
        matched_blocks: found.blocks,
        matched_tokens: u64::from(found.blocks) * u64::from(answer.block_size),
        reusable_tokens: found.reusable_tokens,
        main_group_blocks: found.main_group_blocks,
        blocks_by_tier: Some(tiers(found.by_tier)),
        blocks_by_best_tier: Some(tiers(found.by_best_tier)),
        state: state(found.state).into(),
        applied: found.applied.map(cursor),
        lag_batches: found.lag_batches,
        verified_age_ms: found.verified_age.map(age_ms),
        speculative_blocks: found.speculative_blocks,
        shed_blocks: found.shed_blocks,
        connected: found.connected,
        pool_blocks: found.pool_blocks,
        may_be_high: found.may_be_high,
        reasons: found.reasons.iter().map(|(seen, age)| state_reason(seen, *age)).collect(),
    });
    let pools = answer.pools.iter().map(|at| pb::PoolState {
        pool_id: at.pool.as_str().to_owned(),
        held_blocks: at.held_blocks,
        state: state(at.state).into(),
        connected: at.connected,
        lag_batches: at.lag_batches,
        verified_age_ms: at.verified_age.map(age_ms),
    });
    pb::FindMatchesResponse {
        request_id,
        query_blocks: answer.query_blocks,
        best_overlap_blocks: answer.best_overlap_blocks,
        block_size: answer.block_size,
        matches: matches.collect(),
        missing_shards: Vec::new(),
        restoring_worker_ids: names(&answer.restoring),
        pools: pools.collect(),
        wants_next_tokens: answer.wants_next_tokens,
    }
}

fn names(workers: &[WorkerId]) -> Vec<String> {
    workers.iter().map(|worker| worker.as_str().to_owned()).collect()
}

fn written(answer: &impl WriteAnswer) -> Vec<u8> {
    let mut out = Vec::new();
    answer.write(&mut out);
    out
}

#[test]
fn answers_are_written_as_their_messages_are() {
    for seed in 0..2_000 {
        let mut numbers = Numbers(seed);
        let answer = numbers.answer();
        let request_id = numbers.next();
        let message = message_of(&answer, request_id);
        let reply = FindReply { request_id, answer };
        assert_eq!(written(&reply), message.encode_to_vec(), "seed {seed}");
        let outcome = Some(pb::find_matches_stream_response::Outcome::Matches(message));
        let streamed = pb::FindMatchesStreamResponse { request_id, outcome };
        let reply = FindStreamReply { request_id, outcome: Ok(reply.answer) };
        assert_eq!(written(&reply), streamed.encode_to_vec(), "seed {seed}");
    }
    let error = pb::StreamError { code: 5, message: "no such model".to_owned() };
    let outcome = Some(pb::find_matches_stream_response::Outcome::Error(error.clone()));
    let streamed = pb::FindMatchesStreamResponse { request_id: 7, outcome };
    let reply = FindStreamReply { request_id: 7, outcome: Err(error) };
    assert_eq!(written(&reply), streamed.encode_to_vec());
}

/// Checks that a query has the same fields as the message from the generated decoder.
fn assert_same(request: &pb::FindMatchesRequest, read: &FindRequest, what: &str) {
    assert_eq!(read.request_id, request.request_id, "{what}");
    let query = read.query.as_ref().expect(what);
    assert_eq!(query.partition.model(), request.model, "{what}");
    assert_eq!(query.partition.tenant(), request.tenant, "{what}");
    assert_eq!(query.block_size, request.block_size, "{what}");
    assert_eq!(query.shared, request.shared, "{what}");
    let minimum = request.minimum_overlap_blocks.unwrap_or(1);
    assert_eq!(query.minimum_overlap_blocks, minimum, "{what}");
    assert_eq!(
        query.top_k.unwrap_or(0),
        usize::try_from(request.top_k).expect("64 bits"),
        "{what}"
    );
    let workers = query.workers.iter().flatten().map(WorkerId::as_str);
    assert!(workers.eq(request.worker_ids.iter().map(String::as_str)), "{what}");
    match &query.input {
        QueryInput::Locals(locals) => {
            assert!(locals.iter().map(|local| local.0).eq(request.local_hashes.clone()), "{what}");
        }
        QueryInput::Names(names) => {
            assert!(names.iter().map(|name| name.0).eq(request.sequence_hashes.clone()), "{what}");
        }
        QueryInput::Tokens { tokens, seed, .. } => {
            match tokens {
                QueryTokens::Numbers(tokens) => assert_eq!(*tokens, request.token_ids, "{what}"),
                QueryTokens::LittleEndian(bytes) => {
                    assert_eq!(*bytes, request.token_ids_le, "{what}");
                }
                QueryTokens::Wide(tokens) => assert_eq!(*tokens, request.wide_token_ids, "{what}"),
            }
            let lora_name = &*request.lora_name;
            let cache_salt = &*request.cache_salt;
            let namespace = crate::hash::Namespace { lora_name, cache_salt };
            assert_eq!(*seed, namespace.seed(), "{what}");
        }
    }
}

#[test]
fn requests_are_read_as_their_messages_are() {
    for seed in 0..2_000 {
        let mut numbers = Numbers(seed);
        let what = format!("seed {seed}");
        let request = numbers.request();
        let read = FindRequest::read(&request.encode_to_vec().into()).expect(&what);
        assert_same(&request, &read, &what);
        // A message may arrive in parts, which are merged.
        let other = pb::FindMatchesRequest { model: request.model.clone(), ..Default::default() };
        let mut parts = request.encode_to_vec();
        parts.extend(other.encode_to_vec());
        let read = FindRequest::read(&parts.into()).expect(&what);
        assert_same(&request, &read, &what);
    }
}

/// For any bytes, both readers either accept them or reject them with the same text.
#[test]
fn broken_messages_are_refused_as_the_decoder_refuses_them() {
    let mut refused = 0;
    let mut taken = 0;
    for seed in 0..4_000 {
        let mut numbers = Numbers(seed);
        let mut bytes = numbers.request().encode_to_vec();
        for _ in 0..1 + numbers.next() % 3 {
            let at = usize::try_from(numbers.next()).expect("64 bits") % bytes.len();
            if numbers.next().is_multiple_of(4) {
                bytes.truncate(at.max(1));
            } else {
                bytes[at] = numbers.next().to_le_bytes()[0];
            }
        }
        let bytes = Bytes::from(bytes);
        match (pb::FindMatchesRequest::decode(bytes.clone()), FindRequest::read(&bytes)) {
            (Ok(message), Ok(read)) => {
                taken += 1;
                assert_eq!(read.request_id, message.request_id, "seed {seed}");
                if read.query.is_ok() {
                    assert_same(&message, &read, &format!("seed {seed}"));
                }
            }
            (Err(_), Err(_)) => refused += 1,
            (decoded, read) => panic!("seed {seed}: {decoded:?} and {read:?}"),
        }
    }
    assert!(refused > 500 && taken > 500, "{refused} refused, {taken} taken");
}

#[test]
fn unpacked_numbers_and_several_packs_are_one_list() {
    let mut bytes = Vec::new();
    string::encode(2, &"m".to_owned(), &mut bytes);
    fixed64::encode_packed(12, &[1, 2], &mut bytes);
    fixed64::encode_repeated(12, &[3], &mut bytes);
    fixed64::encode_packed(12, &[4], &mut bytes);
    let query = FindRequest::read(&bytes.into()).expect("protobuf").query.expect("a query");
    let QueryInput::Locals(locals) = query.input else { panic!("no hashes: {query:?}") };
    assert_eq!(locals, [1, 2, 3, 4].map(LocalHash));
}
