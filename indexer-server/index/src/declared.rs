//! The further KV-cache groups that a rank's engine has declared.

use crate::table::index_u32;
use kvasir_proto::types::{BlockName, Group, GroupKind};

/// Declared groups. A group may be declared several times.
#[derive(Debug, Default)]
pub(crate) struct DeclaredGroups {
    /// Each declaration, with its name.
    declarations: Vec<(BlockName, Group)>,
    /// Each group once: with the largest block and window of its declarations, and the greatest common divisor of their
    /// units. Groups that need few blocks come first: their checks cost least and reject most lengths.
    groups: Vec<Group>,
}

impl DeclaredGroups {
    /// Each group once.
    pub(crate) const fn groups(&self) -> &[Group] {
        self.groups.as_slice()
    }

    /// Whether a name is the declaration of a group.
    pub(crate) fn has(&self, name: BlockName) -> bool {
        self.names().any(|declared| declared == name)
    }

    /// Number of declarations.
    pub(crate) const fn len(&self) -> usize {
        self.declarations.len()
    }

    /// Names of the declarations.
    pub(crate) fn names(&self) -> impl Iterator<Item = BlockName> {
        self.declarations.iter().map(|&(name, _)| name)
    }

    pub(crate) fn add(&mut self, name: BlockName, group: Group) {
        self.declarations.push((name, group));
        self.merge(group);
    }

    /// Removes a declaration; other names are ignored.
    pub(crate) fn remove(&mut self, name: BlockName) {
        let declared = self.declarations.iter().find(|(declared, _)| *declared == name);
        let Some(&(_, Group { number, .. })) = declared else { return };
        self.declarations.retain(|(declared, _)| *declared != name);
        self.groups.retain(|group| group.number != number);
        for at in 0..self.declarations.len() {
            if let Some(&(_, group)) = self.declarations.get(at).filter(|at| at.1.number == number)
            {
                self.merge(group);
            }
        }
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.declarations.capacity() * size_of::<(BlockName, Group)>()
            + self.groups.capacity() * size_of::<Group>()
    }

    /// Merges a declaration into the group.
    fn merge(&mut self, group: Group) {
        match self.groups.iter_mut().find(|known| known.number == group.number) {
            Some(known) => {
                let unit = greatest_common_divisor(known.unit.into(), group.unit.into());
                known.unit = index_u32(usize::try_from(unit).unwrap_or(1));
                known.block_size = known.block_size.max(group.block_size);
                known.window = known.window.max(group.window);
            }
            None => self.groups.push(group),
        }
        self.groups.sort_unstable_by_key(|group| match group.kind {
            GroupKind::Mamba => 1,
            GroupKind::Window => group.window.div_ceil(group.block_size),
            GroupKind::Chunked | GroupKind::Full => u32::MAX,
        });
    }
}

/// The greatest common divisor; the other number if one is 0.
pub(crate) fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    // Groups often have equal blocks, and divisions are slow.
    if a == b || b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
