use kvasir_proto::types::{Fingerprint, Incarnation};

/// One batch of a source, by number and fingerprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) sequence: u64,
    /// `None` only if a restored cursor has no fingerprint; it then equals no batch.
    pub(super) fingerprint: Option<Fingerprint>,
}

impl Position {
    pub(super) fn is(&self, sequence: u64, fingerprint: Fingerprint) -> bool {
        self.sequence == sequence && self.fingerprint == Some(fingerprint)
    }
}

/// The source's incarnation and how far it is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// No batch is applied. The id is known once the first batch is available.
    Fresh(Option<Incarnation>),
    /// The cursor is from a checkpoint or an earlier connection: the engine may have restarted.
    Unproven(Incarnation, Position),
    /// The cursor belongs to the current connection's incarnation.
    Known(Incarnation, Position),
}

impl Progress {
    /// The last applied batch.
    pub(super) const fn position(&self) -> Option<Position> {
        match self {
            Self::Fresh(_) => None,
            Self::Unproven(_, position) | Self::Known(_, position) => Some(*position),
        }
    }

    pub(super) const fn incarnation(&self) -> Option<Incarnation> {
        match self {
            Self::Fresh(incarnation) => *incarnation,
            Self::Unproven(incarnation, _) | Self::Known(incarnation, _) => Some(*incarnation),
        }
    }

    pub(super) const fn is_unproven(&self) -> bool {
        matches!(self, Self::Unproven(..))
    }

    pub(super) const fn is_fresh(&self) -> bool {
        matches!(self, Self::Fresh(_))
    }

    /// Keeps the cursor, but requires a new proof.
    pub(super) const fn unproven(self) -> Self {
        match self {
            Self::Known(incarnation, position) => Self::Unproven(incarnation, position),
            Self::Fresh(_) | Self::Unproven(..) => self,
        }
    }

    /// Keeps the cursor, as proved or as trusted.
    pub(super) const fn accepted(self) -> Self {
        match self {
            Self::Unproven(incarnation, position) => Self::Known(incarnation, position),
            Self::Fresh(_) | Self::Known(..) => self,
        }
    }

    /// Number of the next batch.
    pub(super) const fn next(&self) -> u64 {
        match self.position() {
            Some(position) => position.sequence.saturating_add(1),
            None => 0,
        }
    }
}
