/// Kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The caller's identity and description of its blocks.
    Hello = 1,
    /// The owner's answer, with its set and description.
    Welcome = 2,
    /// Why the connection is closed.
    Refusal = 3,
    /// Requests blocks.
    Fetch = 4,
    /// A requested block with its bytes.
    Block = 5,
    /// The end of a request's blocks.
    End = 6,
    /// Requests loans of blocks, which the peer reads itself.
    Lend = 7,
    /// Positions of the lent blocks.
    Lent = 8,
    /// Returns the blocks of a loan.
    Return = 9,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::Hello,
        Self::Welcome,
        Self::Refusal,
        Self::Fetch,
        Self::Block,
        Self::End,
        Self::Lend,
        Self::Lent,
        Self::Return,
    ];
}
