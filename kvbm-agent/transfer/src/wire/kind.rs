/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Who connects, and for which blocks.
    Hello = 1,
    /// Who serves them.
    Welcome = 2,
    /// Why the connection ends.
    Refusal = 3,
    /// Asks for blocks.
    Fetch = 4,
    /// One of them, with its bytes.
    Block = 5,
    /// No further one of a request.
    End = 6,
    /// Asks for blocks to be lent: the peer reads them itself.
    Lend = 7,
    /// Where they are.
    Lent = 8,
    /// They were read.
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
