//! Detects replaced LoRA adapters: a known name with a new number.

use super::keys::Adapter;
use super::place::Location;
use super::{Normalised, Normaliser};
use crate::decode::{EngineKind, RawStored};
use kvasir_proto::limits::WORKER_LORA_NAMES_MAX;
use kvasir_proto::types::{AdapterNumber, KvEvent, Tier};

impl Normaliser {
    /// Removes the blocks that a named adapter had under another number: vLLM's hashes cover the adapter's
    /// path, but its events have only name and number. Returns the adapter of this event's blocks.
    pub(super) fn check_adapter<'a>(
        &mut self,
        stored: &RawStored<'_>,
        adapter: Adapter<'a>,
        location: Location,
        out: &mut Normalised,
    ) -> Adapter<'a> {
        let is_named = stored.lora_name.is_some_and(|name| !name.is_empty());
        let Some(number) = stored.lora_id.filter(|_| is_named) else { return adapter };
        let rank = out.rank;
        let seed = adapter.namespace.adapter.0;
        let adapters = &mut self.learned.adapters;
        // The last number is the current one. Earlier numbers belong to replaced adapters.
        let same = |at: &&AdapterNumber| (at.rank, at.adapter) == (rank, seed);
        let numbers: Vec<u64> = adapters.iter().filter(same).map(|at| at.number).collect();
        if numbers.last() == Some(&number) {
            return adapter;
        }
        // Requests that began before the replacement still store blocks. Connectors announce later what the
        // engine stored before.
        let is_connectors = location != Location::Worker(Tier::Device) && !numbers.is_empty();
        // vLLM's numbers ascend: a lower number belongs to an adapter that was replaced before any event
        // showed it.
        let is_vllm = self.config.engine == EngineKind::Vllm;
        let is_older = is_vllm && numbers.last().is_some_and(|current| number < *current);
        if numbers.contains(&number) || is_connectors || is_older {
            return adapter.replaced(number);
        }
        if adapters.len() >= WORKER_LORA_NAMES_MAX {
            // Forgets replaced numbers first, the oldest number before the others.
            let later = |at: usize, of: &AdapterNumber| {
                let mut later = adapters.iter().skip(at + 1);
                later.any(|other| (other.rank, other.adapter) == (of.rank, of.adapter))
            };
            let oldest = adapters.iter().enumerate().find(|(at, of)| later(*at, of));
            let Some((oldest, _)) = oldest else { return adapter.replaced(number) };
            adapters.remove(oldest);
        }
        adapters.push(AdapterNumber { rank, adapter: seed, number });
        if numbers.is_empty() {
            return adapter;
        }
        if let (0, Some(before)) = (out.renumbered_adapters, numbers.last()) {
            out.renumbered_example = format!("lora_id={number} before={before}");
        }
        out.renumbered_adapters += 1;
        self.drop_chunks(out);
        if self.known.has_forgotten_of(rank) {
            // The adapter's blocks are not known, so all blocks of the rank are dropped.
            for tier in Tier::ALL {
                self.known.cleared(rank, Some(tier));
                out.add(Location::Worker(tier), KvEvent::ClearedTier(tier), None);
            }
            return adapter;
        }
        let ended = self.known.end_adapter(rank, adapter.namespace);
        // Connectors and moves may have announced the names before they were known. They may be in any tier.
        for tier in Tier::ALL.into_iter().filter(|_| !ended.is_empty()) {
            let location = Location::Worker(tier);
            let names = self.all_names(location, ended.clone());
            out.add(location, KvEvent::Gone { tier, names }, None);
        }
        adapter
    }
}
