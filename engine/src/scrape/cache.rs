//! Facts about an engine's cache, from its metrics page.

use super::exposition::{Sample, samples};
use super::{ReadError, ScrapedEngine};
use kvasir_proto::limits::WORKER_RANKS_MAX;
use kvasir_proto::types::DpRank;
use std::collections::BTreeSet;

/// Facts about an engine's cache. All ranks of an engine have equal caches.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheFacts {
    /// The engine.
    pub engine: ScrapedEngine,
    /// Tokens per block, if the page states it.
    pub block_size: Option<u32>,
    /// Blocks of each rank, if the page states it.
    pub blocks: Option<u64>,
    /// Tokens between two lengths at which a prompt can be reused, if the page states it.
    pub prefix_match_unit: Option<u32>,
    /// Whether the engine reuses cached prefixes, if the page states it.
    pub caches_prefixes: Option<bool>,
    /// Data-parallel ranks on the page.
    pub ranks: BTreeSet<DpRank>,
    /// Time of the engine's start, in seconds since 1970, if the page states it.
    pub started_at: Option<f64>,
}

/// Names of an engine's cache metric and of its labels.
struct Names {
    engine: ScrapedEngine,
    prefix: &'static str,
    metric: &'static str,
    block_size: &'static str,
    blocks: &'static str,
    rank: &'static str,
}

/// vLLM from 0.6; SGLang with `--enable-metrics`, until 0.5.10.
const NAMES: [Names; 2] = [
    Names {
        engine: ScrapedEngine::Vllm,
        prefix: "vllm:",
        metric: "vllm:cache_config_info",
        block_size: "block_size",
        blocks: "num_gpu_blocks",
        rank: "engine",
    },
    Names {
        engine: ScrapedEngine::Sglang,
        prefix: "sglang:",
        metric: "sglang:cache_config_info",
        block_size: "page_size",
        blocks: "num_pages",
        rank: "dp_rank",
    },
];

/// Kind of a wanted line.
enum Line {
    Cache,
    Start,
    /// Shows a rank.
    Other,
}

const STARTED_AT: &str = "process_start_time_seconds";

/// Reads the facts about an engine's cache from its metrics page. Each of vLLM's data-parallel ranks states the sum of the
/// blocks of all ranks (0.29.0, 0.32.0: `findings/vllm-data-parallel-blocks.sh`), or none (0.19.1). The sum is shared out.
///
/// # Errors
/// If the page is neither vLLM's nor SGLang's, or cannot be parsed.
pub fn read_cache_facts(body: &[u8]) -> Result<CacheFacts, ReadError> {
    let text = std::str::from_utf8(body).map_err(|_not_text| ReadError::NotText)?;
    let is_of = |names: &&Names| text.lines().any(|line| line.starts_with(names.prefix));
    let names = NAMES.iter().find(is_of).ok_or(ReadError::Nothing(ScrapedEngine::Vllm))?;
    let mut facts = CacheFacts {
        engine: names.engine,
        block_size: None,
        blocks: None,
        prefix_match_unit: None,
        caches_prefixes: None,
        ranks: BTreeSet::new(),
        started_at: None,
    };
    let wanted = |name: &str| match name {
        STARTED_AT => Some(Line::Start),
        name if name == names.metric => Some(Line::Cache),
        name => name.starts_with(names.prefix).then_some(Line::Other),
    };
    let mut stating_blocks = BTreeSet::new();
    for sample in samples(text, wanted) {
        let (line, sample) = sample?;
        let rank = sample.label(names.rank).and_then(|rank| rank.parse().ok());
        let rank = rank.filter(|rank: &DpRank| (*rank as usize) < WORKER_RANKS_MAX);
        facts.ranks.extend(rank);
        match line {
            Line::Cache => {
                facts.add(names, &sample);
                if count(&sample, names.blocks).is_some() {
                    stating_blocks.insert(rank);
                }
            }
            Line::Start => facts.started_at = Some(sample.value).filter(|time| time.is_finite()),
            Line::Other => {}
        }
    }
    if facts.engine == ScrapedEngine::Vllm {
        facts.blocks = facts.blocks.map(|sum| sum / stating_blocks.len().max(1) as u64);
    }
    Ok(facts)
}

/// The positive number in a label. A label is "None" until its value is known.
fn count(sample: &Sample<'_>, label: &str) -> Option<u64> {
    sample.label(label)?.parse().ok().filter(|at| *at > 0)
}

impl CacheFacts {
    fn add(&mut self, names: &Names, sample: &Sample<'_>) {
        let tokens = |label| count(sample, label).and_then(|tokens| u32::try_from(tokens).ok());
        self.block_size = tokens(names.block_size).or(self.block_size);
        self.prefix_match_unit = tokens("prefix_match_unit").or(self.prefix_match_unit);
        self.blocks = count(sample, names.blocks).or(self.blocks);
        let is_on = sample.label("enable_prefix_caching").map(|text| text == "True");
        self.caches_prefixes = is_on.or(self.caches_prefixes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllm_states_blocks_ranks_and_prefix_caching() {
        let page = b"# HELP vllm:cache_config_info x\n\
            process_start_time_seconds 1.5e9\n\
            vllm:cache_config_info{block_size=\"32\",enable_prefix_caching=\"True\",engine=\"0\",num_gpu_blocks=\"400\",prefix_match_unit=\"64\"} 1.0\n\
            vllm:cache_config_info{block_size=\"32\",enable_prefix_caching=\"True\",engine=\"1\",num_gpu_blocks=\"None\"} 1.0\n\
            vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 0.0\n";
        let facts = read_cache_facts(page).expect("vLLM's page");
        assert_eq!(
            facts,
            CacheFacts {
                engine: ScrapedEngine::Vllm,
                block_size: Some(32),
                blocks: Some(400),
                prefix_match_unit: Some(64),
                caches_prefixes: Some(true),
                ranks: [0, 1].into(),
                started_at: Some(1.5e9),
            }
        );
    }

    #[test]
    fn the_blocks_of_all_ranks_are_shared_out() {
        let line = |rank: u32| {
            format!(
                "vllm:cache_config_info{{block_size=\"32\",engine=\"{rank}\",num_gpu_blocks=\"1200\"}} 1\n"
            )
        };
        for (ranks, blocks) in [(1, 1_200), (2, 600), (3, 400)] {
            // Several API servers repeat the lines.
            let page: String = (0..ranks).chain(0..ranks).map(line).collect();
            let facts = read_cache_facts(page.as_bytes()).expect("vLLM's page");
            assert_eq!((facts.ranks.len(), facts.blocks), (ranks as usize, Some(blocks)));
        }
    }

    #[test]
    fn other_pages_state_what_they_have() {
        let page = b"sglang:cache_config_info{page_size=\"1\",num_pages=\"9\"} 1\nsglang:x{dp_rank=\"2\"} 1\n";
        let facts = read_cache_facts(page).expect("SGLang's page");
        assert_eq!(facts.engine, ScrapedEngine::Sglang);
        assert_eq!((facts.block_size, facts.blocks), (Some(1), Some(9)));
        assert_eq!((facts.ranks, facts.caches_prefixes), ([2].into(), None));
        let facts =
            read_cache_facts(b"vllm:cache_config_info{block_size=\"0\"} 1\n").expect("a page");
        assert_eq!((facts.block_size, facts.started_at), (None, None));
        for page in [&b""[..], b"other:metric 1\n", b"\xff"] {
            read_cache_facts(page).expect_err("no engine's page");
        }
    }
}
