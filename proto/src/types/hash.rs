use std::fmt;

macro_rules! hash_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, bytemuck::Pod, bytemuck::Zeroable,
        )]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The hashes as plain numbers.
            #[must_use]
            pub fn numbers(hashes: &[Self]) -> &[u64] {
                bytemuck::must_cast_slice(hashes)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:016x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }
    };
}

hash_newtype! {
    /// Hash of the tokens inside one block (with LoRA, salt and multimodal identity), independent of
    /// its position in the prompt. Queries carry these.
    LocalHash
}

hash_newtype! {
    /// Canonical hash of a block and its complete prefix, computed from local hashes.
    SequenceHash
}

hash_newtype! {
    /// The engine's own hash of a block, valid only within one rank of a worker.
    BlockName
}
