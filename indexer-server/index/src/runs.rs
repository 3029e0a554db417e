//! Free-space lists: bitmaps of 64 items each, in lists by their longest run of free items.
//!
//! The slots use it twice: for the 64 slots of a page, and for the 64 pages of a chunk.
#![expect(clippy::indexing_slicing, reason = "members are numbered by the owner, from 0")]

/// Number of lists, by longest free run: 1, 2–3, 4–7, 8–15, 16–31, 32–63, 64. Full members are in no list.
const CLASSES: usize = 7;
const FULL: u8 = u8::MAX;
const NOBODY: u32 = u32::MAX;
/// Number of members whose links are allocated together.
const BLOCK: usize = 64;

#[derive(Debug, Clone, Copy)]
struct Links {
    class: u8,
    previous: u32,
    next: u32,
}

/// Members in lists by their longest run of free items.
#[derive(Debug)]
pub(crate) struct RunLists {
    #[expect(clippy::vec_box, reason = "growing copies pointers only")]
    links: Vec<Box<[Links; BLOCK]>>,
    heads: [u32; CLASSES],
}

impl Default for RunLists {
    fn default() -> Self {
        Self { links: Vec::new(), heads: [NOBODY; CLASSES] }
    }
}

/// Class of a bitmap of free items: floor of log2 of its longest run.
const fn class_of(free: u64) -> u8 {
    let mut runs = free;
    if runs == 0 {
        return FULL;
    }
    let mut class = 0;
    while class < 6 {
        let longer = runs & (runs >> (1 << class));
        if longer == 0 {
            break;
        }
        runs = longer;
        class += 1;
    }
    class
}

/// First bit of `free` where a run of `wanted` begins; 64 if there is none.
pub(crate) const fn first_run(free: u64, wanted: u32) -> u32 {
    let mut starts = free;
    let mut have = 1;
    while have < wanted {
        let step = if have < wanted - have { have } else { wanted - have };
        starts &= starts >> step;
        have += step;
    }
    starts.trailing_zeros()
}

impl RunLists {
    /// Moves a member to the list for its longest free run.
    pub(crate) fn update(&mut self, member: u32, free: u64) {
        let now = class_of(free);
        while self.links.len() * BLOCK <= member as usize {
            let fresh = Links { class: FULL, previous: NOBODY, next: NOBODY };
            self.links.push(Box::new([fresh; BLOCK]));
        }
        let Links { class, previous, next } = *self.at(member);
        if class == now {
            return;
        }
        if class != FULL {
            if previous == NOBODY {
                self.heads[class as usize] = next;
            } else {
                self.at(previous).next = next;
            }
            if next != NOBODY {
                self.at(next).previous = previous;
            }
        }
        let head = if now == FULL { NOBODY } else { self.heads[now as usize] };
        *self.at(member) = Links { class: now, previous: NOBODY, next: head };
        if head != NOBODY {
            self.at(head).previous = member;
        }
        if now != FULL {
            self.heads[now as usize] = member;
        }
    }

    fn at(&mut self, member: u32) -> &mut Links {
        &mut self.links[member as usize / BLOCK][member as usize % BLOCK]
    }

    /// A member with a run of at least `wanted`, 1–64, from the lowest class that guarantees it.
    pub(crate) fn fitting(&self, wanted: u32) -> Option<u32> {
        let class = wanted.next_power_of_two().trailing_zeros() as usize;
        self.heads[class..].iter().copied().find(|&head| head != NOBODY)
    }

    /// A member with the longest run, to within a factor of two, and a length that it has.
    pub(crate) fn longest(&self) -> Option<(u32, u32)> {
        let all = self.heads.iter().enumerate().rev();
        let (class, &member) = all.into_iter().find(|(_, head)| **head != NOBODY)?;
        Some((member, 1 << class))
    }

    /// Bytes allocated.
    pub(crate) const fn bytes(&self) -> usize {
        self.links.len() * size_of::<[Links; BLOCK]>()
            + self.links.capacity() * size_of::<Box<[Links; BLOCK]>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_is_the_longest_free_run() {
        for (free, class) in [
            (0, FULL),
            (u64::MAX, 6),
            (!1, 5),
            (!(1 << 32), 5),
            (0b11 << 7, 1),
            (0b1111 << 60, 2),
            (0b1_0101, 0),
            (0x7fff_7fff_7fff_7fff, 3),
        ] {
            assert_eq!(class_of(free), class, "{free:016x}");
        }
    }

    #[test]
    fn runs_begin_where_enough_is_free() {
        for (free, wanted, first) in [
            (u64::MAX, 64, 0),
            (!0xff, 8, 8),
            (0b1011_0111, 2, 0),
            (0b1011_0111, 4, 64),
            (0b1111_0111, 4, 4),
            (1 << 63, 1, 63),
        ] {
            assert_eq!(first_run(free, wanted), first, "{free:b} {wanted}");
        }
    }

    #[test]
    fn members_are_found_by_what_they_have() {
        let mut lists = RunLists::default();
        assert_eq!((lists.fitting(1), lists.longest()), (None, None));
        lists.update(3, 0xff);
        lists.update(100, u64::MAX);
        assert_eq!((lists.fitting(8), lists.fitting(9)), (Some(3), Some(100)));
        assert_eq!(lists.longest(), Some((100, 64)));
        lists.update(100, 0);
        assert_eq!((lists.fitting(9), lists.longest()), (None, Some((3, 8))));
        lists.update(3, 1);
        lists.update(100, 1);
        assert_eq!((lists.fitting(1), lists.fitting(2)), (Some(100), None));
    }
}
