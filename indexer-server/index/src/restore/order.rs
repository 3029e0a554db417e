//! Sorts the blocks of a rank topologically: parents first.
#![expect(clippy::indexing_slicing, reason = "places are numbered by this file only")]

use super::saved::SavedRank;
use crate::image::{HoleImage, NameImage, RunImage};
use crate::slots::Slot;
use crate::table::index_u32;
use kvasir_proto::types::BlockName;
use std::mem;

/// An item to place, and its parent.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) what: What,
    pub(super) above: Above,
    /// The parent position's own name, if known.
    pub(super) parent: Option<BlockName>,
}

#[derive(Debug)]
pub(super) enum What {
    /// Plain blocks.
    Run(RunImage),
    /// All names of one position, and the position's own name.
    Names(Vec<NameImage>, BlockName),
    /// A position that the rank does not hold. The blocks below it follow immediately, possibly after other
    /// holes.
    Hole(HoleImage),
}

/// The parent of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Above {
    Root,
    /// A block of an earlier item.
    At {
        item: u32,
        offset: u32,
    },
    /// Unknown.
    Nowhere,
}

/// The items of a rank in topological order.
#[derive(Debug, Default)]
pub(super) struct Order {
    pub(super) items: Vec<Item>,
    /// Parked names, which have no position.
    pub(super) parked: Vec<NameImage>,
    /// Names at the position of a plain block; they are not placed.
    pub(super) displaced: Vec<NameImage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    /// Waits for its parent.
    Open,
    /// Placed, as this item.
    Done(u32),
}

/// Consecutive saved slots with their content.
#[derive(Debug)]
struct Place {
    first: Slot,
    len: u32,
    parent: Option<Slot>,
    /// `None` after it was moved to an item.
    what: Option<What>,
    state: State,
}

impl Place {
    fn new(first: Slot, len: usize, parent: Option<Slot>, what: What) -> Self {
        Self { first, len: index_u32(len), parent, what: Some(what), state: State::New }
    }

    const fn end_slot(&self) -> u64 {
        self.first as u64 + self.len as u64
    }

    /// Precedence among several entries of one slot: the lowest counts.
    const fn rank(&self) -> u8 {
        match &self.what {
            Some(What::Run(_)) => 0,
            Some(What::Names(..)) => 1,
            Some(What::Hole(_)) | None => 2,
        }
    }
}

impl Item {
    /// The own name of one of the item's positions.
    fn own_name(&self, offset: u32) -> Option<BlockName> {
        match &self.what {
            What::Run(run) => run.blocks.get(offset as usize).map(|block| block.name),
            What::Names(_, own) => Some(*own),
            What::Hole(hole) => Some(hole.name),
        }
    }
}

/// Sorts the saved blocks of a rank, so that each parent is before its children. The images of a generation may have
/// several entries for one slot: a run counts first, then names, then a hole. Returns `None` if two
/// runs overlap, which no valid image has.
pub(super) fn order(saved: SavedRank) -> Option<Order> {
    let SavedRank { runs, names, holes, .. } = saved;
    let mut order = Order::default();
    let mut places: Vec<Place> = Vec::with_capacity(runs.len() + names.len() + holes.len());
    for run in runs {
        places.push(Place::new(run.first, run.blocks.len(), run.parent, What::Run(run)));
    }
    // A name without a position is parked: it needs no place.
    let (mut placed, parked): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| name.position.is_some());
    order.parked = parked;
    placed.sort_unstable_by_key(|name| (name.position.map(|at| at.slot), name.name));
    for names in
        placed.chunk_by(|a, b| a.position.map(|at| at.slot) == b.position.map(|at| at.slot))
    {
        if let [NameImage { position: Some(at), name, local, .. }, ..] = names {
            // The names of a position share its block. Its own name is in the hole of the same block, if there is one.
            let own = holes
                .get(&at.slot)
                .filter(|hole| hole.position.parent == at.parent && Some(hole.local) == *local);
            let own = own.map_or(*name, |hole| hole.name);
            places.push(Place::new(at.slot, 1, at.parent, What::Names(names.to_vec(), own)));
        }
    }
    // A hole that belongs to names sorts behind them, and is dropped below.
    let unheld =
        |hole: HoleImage| Place::new(hole.position.slot, 1, hole.position.parent, What::Hole(hole));
    places.extend(holes.into_values().map(unheld));
    places.sort_unstable_by_key(|place| (place.first, place.rank()));
    let places = drop_overlaps(places, &mut order)?;
    order.items = Places(places).in_order();
    Some(order)
}

/// Keeps the first entry of each slot, and drops later entries that overlap it. Dropped names are returned in
/// `order.displaced`. Returns `None` if a run overlaps an earlier entry.
fn drop_overlaps(places: Vec<Place>, order: &mut Order) -> Option<Vec<Place>> {
    let mut apart: Vec<Place> = Vec::with_capacity(places.len());
    for place in places {
        if apart.last().is_none_or(|last| last.end_slot() <= u64::from(place.first)) {
            apart.push(place);
            continue;
        }
        match place.what {
            Some(What::Run(_)) => return None,
            Some(What::Names(names, _)) => order.displaced.extend(names),
            Some(What::Hole(_)) | None => {}
        }
    }
    Some(apart)
}

/// Places in order of their slots, without overlaps.
struct Places(Vec<Place>);

impl Places {
    /// Depth-first search along the parents, without recursion: `open` is the stack of places that wait for their
    /// parent.
    fn in_order(mut self) -> Vec<Item> {
        let mut items: Vec<Item> = Vec::with_capacity(self.0.len());
        let mut open = Vec::new();
        for start in 0..self.0.len() {
            // Holes matter only as ancestors of other items.
            if self.0[start].rank() < 2 && self.0[start].state == State::New {
                open.push(start);
            }
            while let Some(&at) = open.last() {
                self.0[at].state = State::Open;
                let above = match self.0[at].parent.map(|slot| (slot, self.find(slot))) {
                    None => Above::Root,
                    Some((_, None)) => Above::Nowhere,
                    Some((slot, Some(place))) => match self.0[place].state {
                        State::New => {
                            open.push(place);
                            continue;
                        }
                        // The parents form a cycle.
                        State::Open => Above::Nowhere,
                        State::Done(item) => Above::At { item, offset: slot - self.0[place].first },
                    },
                };
                open.pop();
                self.finish(at, above, &mut items);
            }
        }
        items
    }

    /// Moves a place to the items.
    fn finish(&mut self, at: usize, above: Above, items: &mut Vec<Item>) {
        let parent = match above {
            Above::At { item, offset } => items[item as usize].own_name(offset),
            Above::Root | Above::Nowhere => None,
        };
        let place = &mut self.0[at];
        place.state = State::Done(index_u32(items.len()));
        if let Some(what) = mem::take(&mut place.what) {
            items.push(Item { what, above, parent });
        }
    }

    /// Index of the place that contains a slot.
    fn find(&self, slot: Slot) -> Option<usize> {
        let behind = self.0.partition_point(|place| place.first <= slot);
        let at = behind.checked_sub(1)?;
        (u64::from(slot) < self.0[at].end_slot()).then_some(at)
    }
}
