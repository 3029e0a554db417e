//! An in-memory store of workers' images, as maps in which later entries replace earlier ones.

use crate::script::ScriptRng;
use kvasir_index::{
    HoleImage, MeaningImage, NameImage, PageImage, RankImage, Saved, Slot, SourceId, SourceImage,
    WorkerImage,
};
use kvasir_proto::types::{BlockName, DpRank, Tier, WorkerId};
use rand::Rng;
use rand::seq::SliceRandom;
use std::collections::BTreeMap;

/// A fault of the store that tests must detect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// No fault.
    Nothing,
    /// Holes are not stored.
    Holes,
    /// A position's own name is not stored if the position is held under other names.
    OwnNames,
    /// Names are not stored.
    Names,
    /// Pages that became empty are not removed.
    EmptyPages,
    /// Removed names are not deleted.
    GoneNames,
    /// A complete image does not replace the images stored before.
    OldGeneration,
}

impl Loss {
    /// All faults.
    pub const ALL: [Self; 6] = [
        Self::Holes,
        Self::OwnNames,
        Self::Names,
        Self::EmptyPages,
        Self::GoneNames,
        Self::OldGeneration,
    ];
}

/// The stored images of one rank.
#[derive(Debug, Default, Clone)]
pub struct StoredRankImages {
    primary: Option<SourceId>,
    shed_blocks: u64,
    short: Vec<SourceId>,
    /// Pages, by number.
    pub pages: BTreeMap<u32, PageImage>,
    /// Names that are not plain.
    pub names: BTreeMap<BlockName, NameImage>,
    /// Holes by slot.
    pub holes: BTreeMap<Slot, HoleImage>,
    /// Meanings of names, by source and name.
    pub meanings: BTreeMap<(SourceId, BlockName), MeaningImage>,
}

/// The stored images of one worker.
#[derive(Debug, Default, Clone)]
pub struct StoredImages {
    /// Sources of the worker, as of the last image.
    pub sources: Vec<SourceImage>,
    /// Ranks of the worker.
    pub ranks: BTreeMap<DpRank, StoredRankImages>,
}

impl StoredRankImages {
    fn merge(&mut self, image: RankImage, loss: Loss) {
        let RankImage { primary, shed_blocks, short, pages, names, holes, meanings, .. } = image;
        (self.primary, self.shed_blocks, self.short) = (primary, shed_blocks, short);
        for page in pages {
            if !page.runs.is_empty() {
                self.pages.insert(page.page, page);
            } else if loss != Loss::EmptyPages {
                self.pages.remove(&page.page);
            }
        }
        let positions: Vec<_> = names.iter().filter_map(|name| name.position).collect();
        for name in names {
            let is_gone = name.copies.is_empty();
            if is_gone && loss != Loss::GoneNames {
                self.names.remove(&name.name);
            } else if !is_gone && loss != Loss::Names {
                self.names.insert(name.name, name);
            }
        }
        for at in meanings {
            if at.meaning.is_some() {
                self.meanings.insert((at.source, at.name), at);
            } else {
                self.meanings.remove(&(at.source, at.name));
            }
        }
        for hole in holes {
            let is_named = positions.contains(&hole.position);
            if loss != Loss::Holes && !(loss == Loss::OwnNames && is_named) {
                self.holes.insert(hole.position.slot, hole);
            }
        }
    }
}

impl StoredImages {
    /// Merges an image.
    pub fn merge(&mut self, image: WorkerImage, loss: Loss) {
        if image.whole && loss != Loss::OldGeneration {
            self.ranks.clear();
        }
        self.sources = image.sources;
        for rank in image.ranks {
            self.ranks.entry(rank.rank).or_default().merge(rank, loss);
        }
    }

    /// All stored pieces, in random order.
    ///
    /// # Errors
    /// If the index rejects a piece; the error has the reason.
    pub fn saved(&self, worker: &WorkerId, rng: &mut ScriptRng) -> Result<Saved, String> {
        enum Piece {
            Source(SourceImage),
            Rank(DpRank, StoredRankImages),
            Page(DpRank, PageImage),
            Name(DpRank, NameImage),
            Hole(DpRank, HoleImage),
            Meaning(DpRank, MeaningImage),
        }
        let mut pieces: Vec<Piece> = self.sources.iter().cloned().map(Piece::Source).collect();
        for (&rank, stored) in &self.ranks {
            pieces.push(Piece::Rank(rank, stored.clone()));
            pieces.extend(stored.pages.values().cloned().map(|page| Piece::Page(rank, page)));
            pieces.extend(stored.names.values().cloned().map(|name| Piece::Name(rank, name)));
            pieces.extend(stored.holes.values().map(|&hole| Piece::Hole(rank, hole)));
            pieces.extend(stored.meanings.values().map(|&at| Piece::Meaning(rank, at)));
        }
        pieces.shuffle(rng);
        let mut saved = Saved::new(worker.clone());
        for piece in pieces {
            let added = match piece {
                Piece::Source(source) => saved.source(source),
                Piece::Rank(rank, stored) => {
                    saved.rank(rank, stored.primary, stored.shed_blocks, stored.short);
                    Ok(())
                }
                Piece::Page(rank, page) => saved.page(rank, page),
                Piece::Name(rank, name) => saved.name(rank, name),
                Piece::Hole(rank, hole) => {
                    saved.hole(rank, hole);
                    Ok(())
                }
                Piece::Meaning(rank, at) => {
                    saved.meaning(rank, at);
                    Ok(())
                }
            };
            added.map_err(|error| error.to_string())?;
        }
        Ok(saved)
    }

    /// Makes one random change, like a faulty disk.
    ///
    /// # Panics
    /// Never: the entry to change was looked up.
    pub fn damage(&mut self, rng: &mut ScriptRng) {
        let number = |rng: &mut ScriptRng| match rng.random_range(0..4) {
            0 => u32::MAX - rng.random_range(0..3),
            1 => rng.random_range(0..300),
            2 => rng.random_range(0..5_000),
            _ => rng.random(),
        };
        let slot = |rng: &mut ScriptRng| rng.random_bool(0.8).then(|| number(rng));
        let source = SourceId(rng.random_range(0..4));
        let ranks: Vec<_> = self.ranks.keys().copied().collect();
        let Some(&rank) = ranks.get(rng.random_range(0..ranks.len().max(1))) else {
            return;
        };
        let stored = self.ranks.get_mut(&rank).expect("there");
        let pages: Vec<_> = stored.pages.keys().copied().collect();
        let names: Vec<_> = stored.names.keys().copied().collect();
        let holes: Vec<_> = stored.holes.keys().copied().collect();
        let page = pages.get(rng.random_range(0..pages.len().max(1)));
        let name = names.get(rng.random_range(0..names.len().max(1)));
        let hole = holes.get(rng.random_range(0..holes.len().max(1)));
        match (rng.random_range(0..12), page, name, hole) {
            (0, ..) => stored.primary = rng.random_bool(0.5).then_some(source),
            (1, ..) => {
                (stored.shed_blocks, stored.short) = (u64::from(number(rng)), vec![source]);
            }
            (2, Some(page), ..) => drop(stored.pages.remove(page)),
            (3, Some(page), ..) => {
                let runs = &mut stored.pages.get_mut(page).expect("there").runs;
                let at = rng.random_range(0..runs.len());
                runs[at].parent = slot(rng);
            }
            (4, Some(page), ..) => {
                let runs = &mut stored.pages.get_mut(page).expect("there").runs;
                let at = rng.random_range(0..runs.len());
                let blocks = &mut runs[at].blocks;
                let first = rng.random_range(0..blocks.len());
                blocks[first].name = BlockName(rng.random_range(1..9));
                blocks[first].local.0 = rng.random_range(1..4);
            }
            (5, Some(page), ..) => {
                let run = stored.pages[page].runs[0].clone();
                stored.pages.get_mut(page).expect("there").runs.push(run);
            }
            (6, Some(page), ..) => stored.pages.get_mut(page).expect("there").page = number(rng),
            (7, _, Some(name), _) => {
                let image = stored.names.get_mut(name).expect("there");
                if let Some(at) = &mut image.position {
                    (at.slot, at.parent) = (number(rng), slot(rng));
                }
            }
            (8, _, Some(name), _) => {
                let image = stored.names.get_mut(name).expect("there");
                image.copies = vec![(source, [1; Tier::COUNT]), (source, [2, 0, 0])];
                image.name = BlockName(rng.random_range(1..9));
            }
            (9, _, Some(name), _) => drop(stored.names.remove(name)),
            (10, .., Some(hole)) => {
                let image = stored.holes.get_mut(hole).expect("there");
                image.position.parent = slot(rng);
                image.name = BlockName(rng.random_range(1..9));
            }
            (11, .., Some(hole)) => drop(stored.holes.remove(hole)),
            _ => {}
        }
    }
}
