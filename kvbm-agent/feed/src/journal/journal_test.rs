//! Tests the journal against a simple model.

use super::{AppendError, DumpAbort, DumpError, DumpStep, Journal, JournalConfig, RangeError};
use kvasir_proto::types::{DpRank, KvEvent};
use proptest::prelude::*;
use std::collections::BTreeMap;

use super::model_test::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_inventory_is_what_the_model_says(
        mode in any_mode(),
        batches in prop::collection::vec(any_batch(), 1..30),
    ) {
        let mut journal = journal(mode);
        let mut model = Model::new(mode);
        for (rank, events) in batches {
            for event in &events {
                model.apply(rank, event);
            }
            let sequence = journal.append(rank, events).expect("a small batch");
            let (dumped, cut) = dump(&mut journal, 3);
            prop_assert_eq!(&dumped, &model);
            prop_assert_eq!((cut.incarnation, cut.watermark), (INCARNATION, Some(sequence)));
            prop_assert_eq!(journal.status().held_blocks, model.held.len());
            let digests = journal.digests(INCARNATION).expect("the present incarnation");
            let held = digests.ranks.into_iter().filter(|(_, digest)| !digest.is_empty());
            prop_assert_eq!(held.collect::<BTreeMap<_, _>>(), model.digests());
            prop_assert_eq!(digests.watermark, Some(sequence));
            let totals = model.digests().into_iter().map(|(rank, digest)| digest.total(rank));
            prop_assert_eq!(journal.digest(), Some(totals.fold(0, u64::wrapping_add)));
        }
    }

    /// A reader of only the new incarnation has all held blocks, although the ring's limits are too small for them.
    #[test]
    fn a_republished_image_is_what_is_held(
        mode in any_mode(),
        before in prop::collection::vec(any_batch(), 0..30),
        dumping in any::<bool>(),
        after in prop::collection::vec(any_batch(), 0..3),
    ) {
        let config = JournalConfig { batches_max: 1, bytes_max: 1, ..config(mode) };
        let mut journal = Journal::new(INCARNATION, 5, config);
        let mut model = Model::new(mode);
        for (rank, events) in before {
            events.iter().for_each(|event| model.apply(rank, event));
            journal.append(rank, events).expect("a small batch");
        }
        let next = journal.head().map_or(5, |head| head + 1);
        let dump = dumping.then(|| journal.begin_dump(None).expect("the first dump"));
        journal.republish(OTHER);
        prop_assert_eq!((journal.incarnation(), journal.first()), (OTHER, next));
        if let Some(dump) = dump {
            let aborted = DumpError::Aborted(DumpAbort::NewIncarnation);
            prop_assert_eq!(journal.step_dump(dump, 1), Err(aborted));
        }
        // The ring retains the image until as many further batches follow.
        let room = journal.status().batches;
        for (rank, events) in after.into_iter().take(room) {
            if !events.is_empty() {
                // In the shape of the image's events, so that the batch takes no more bytes.
                let events = vec![KvEvent::Cleared];
                model.apply(rank, &events[0]);
                journal.append(rank, events).expect("a small batch");
            }
        }
        let range = journal.range(OTHER, 0..=u64::MAX, usize::MAX).expect("all of it is kept");
        let mut received = Model::new(mode);
        for batch in &range.batches {
            batch.events().iter().for_each(|event| received.apply(batch.rank(), event));
        }
        prop_assert_eq!(&received, &model);
        let (held, _) = self::dump(&mut journal, 3);
        prop_assert_eq!(&held, &model);
    }

    /// Under any changes during a dump, its records equal the state at its watermark. The batches after that lead to
    /// the current state.
    #[test]
    fn a_dump_and_what_came_after_it_are_the_original(
        mode in any_mode(),
        before in prop::collection::vec(any_batch(), 0..12),
        steps in prop::collection::vec((prop::option::of(any_batch()), 1..4_usize), 1..60),
        after in prop::collection::vec(any_batch(), 0..6),
    ) {
        let mut journal = journal(mode);
        let mut model = Model::new(mode);
        let append = |journal: &mut Journal, model: &mut Model, batch: (DpRank, Vec<KvEvent>)| {
            for event in &batch.1 {
                model.apply(batch.0, event);
            }
            journal.append(batch.0, batch.1).expect("a small batch");
        };
        for batch in before {
            append(&mut journal, &mut model, batch);
        }
        let mut loaded = Model::new(mode);
        let mut id = journal.begin_dump(Some(INCARNATION)).expect("the first dump");
        let mut cut = None;
        for (batch, records_max) in steps {
            if let Some(batch) = batch {
                append(&mut journal, &mut model, batch);
            }
            match journal.step_dump(id, records_max) {
                Ok(DumpStep::Records { rank, records }) => loaded.load(rank, &records),
                Ok(DumpStep::Cut(end)) => {
                    cut = Some(end);
                    break;
                }
                Err(error) => {
                    prop_assert_eq!(error, DumpError::Aborted(DumpAbort::Cleared));
                    (loaded, id) = (Model::new(mode), journal.begin_dump(None).expect("again"));
                }
            }
        }
        let cut = cut.unwrap_or_else(|| finish(&mut journal, id, &mut loaded));
        loaded.load_cut(&cut);
        prop_assert_eq!(cut.watermark, journal.head());
        prop_assert_eq!(&loaded, &model);
        for batch in after {
            append(&mut journal, &mut model, batch);
        }
        let next = cut.watermark.map_or(0, |watermark| watermark + 1);
        let later = journal.range(INCARNATION, next..=u64::MAX, usize::MAX).expect("all are kept");
        for batch in later.batches {
            for event in batch.events() {
                loaded.apply(batch.rank(), event);
            }
        }
        prop_assert_eq!(&loaded, &model);
    }

    /// Compares every range of a ring with all batches that ever existed.
    #[test]
    fn ranges_are_contiguous_and_exact(
        first in prop_oneof![Just(0), Just(77), Just(u64::MAX - 20), Just(u64::MAX)],
        appended in 0..24_u64,
        batches_max in 1..9_usize,
        part in 1..5_usize,
    ) {
        let config = JournalConfig { batches_max, ..JournalConfig::DEFAULT };
        let mut journal = Journal::new(INCARNATION, first, config);
        let mut all = Vec::new();
        for at in 0..appended {
            match journal.append(0, vec![stored(None, [at])]) {
                Ok(sequence) => all.push(sequence),
                Err(error) => prop_assert_eq!(error, AppendError::Exhausted),
            }
        }
        let expected: Vec<u64> = (0..appended).map_while(|at| first.checked_add(at)).collect();
        prop_assert_eq!(&all, &expected);
        let kept = &all[all.len().saturating_sub(batches_max)..];
        prop_assert_eq!(journal.oldest(), kept.first().copied());
        prop_assert_eq!(journal.head(), all.last().copied());
        let around = |number: u64| number.saturating_sub(3)..=number.saturating_add(30);
        for from in around(first).chain([0, u64::MAX]) {
            for to in around(from).filter(|to| *to >= from).chain([u64::MAX]) {
                let expected = expected_range(first, &all, kept, from, to);
                let found = journal.range(INCARNATION, from..=to, part);
                let found = found.map(|range| {
                    assert_eq!(range.head, all.last().copied());
                    range.batches.iter().map(|batch| batch.sequence()).collect::<Vec<_>>()
                });
                let expected = expected.map(|range| range.into_iter().take(part).collect());
                prop_assert_eq!(found, expected, "{}..={}", from, to);
            }
        }
        let error = RangeError::WrongIncarnation { present: INCARNATION };
        prop_assert_eq!(journal.range(OTHER, 0..=u64::MAX, 1), Err(error));
    }
}

fn expected_range(
    first: u64,
    all: &[u64],
    kept: &[u64],
    from: u64,
    to: u64,
) -> Result<Vec<u64>, RangeError> {
    let from = from.max(first);
    let head = all.last().copied();
    let newest = head.map_or(u128::from(first), |head| u128::from(head) + 1);
    if u128::from(from) > newest {
        return Err(RangeError::Ahead { head });
    }
    let wanted: Vec<u64> = all.iter().copied().filter(|at| (from..=to).contains(at)).collect();
    match (wanted.first(), kept.first(), head) {
        (Some(wanted), Some(&oldest), Some(head)) if *wanted < oldest => {
            Err(RangeError::TooOld { oldest, head })
        }
        _ => Ok(wanted),
    }
}
