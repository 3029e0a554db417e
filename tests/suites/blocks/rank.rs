//! The blocks of one rank of a tensor-parallel group, in one of several layouts.

use crate::place::BLOCK_SIZE;

const LAYERS: u32 = 3;
/// Elements of a token of all ranks, of keys or values, of 2 bytes each.
const ELEMENTS: u32 = 64;

/// How the parts of a block lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Contiguous,
    Layers,
    Outers,
}

/// One rank of a group.
#[derive(Debug, Clone, Copy)]
pub struct Rank {
    pub role: &'static str,
    pub number: u32,
    pub size: u32,
    pub form: Form,
    pub alignment: usize,
}

impl Rank {
    pub const fn of(role: &'static str, number: u32, size: u32) -> Self {
        Self { role, number, size, form: Form::Contiguous, alignment: 1 }
    }

    pub fn worker(&self) -> String {
        format!("{}-{}-{}", self.role, self.number, self.size)
    }

    pub fn flags(&self) -> Vec<String> {
        let form = match self.form {
            Form::Contiguous => "contiguous",
            Form::Layers => "layer-separate",
            Form::Outers => "outer-separate",
        };
        let Self { number, size, alignment, .. } = self;
        let inner_dim = ELEMENTS / size;
        let geometry = format!(
            "layers={LAYERS},inner-dim={inner_dim},dtype=float16,form={form},alignment={alignment},tp-rank={number},\
             tp-size={size}"
        );
        vec!["--worker-id".to_owned(), self.worker(), "--blocks-geometry".to_owned(), geometry]
    }

    /// What its part of a block is: element by element, with zeros as padding.
    pub fn bytes_of(&self, sequence: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let pad = |bytes: &mut Vec<u8>, is_end: bool| {
            while is_end && !bytes.len().is_multiple_of(self.alignment) {
                bytes.push(0);
            }
        };
        for layer in 0..LAYERS {
            for outer in 0..2 {
                for token in 0..BLOCK_SIZE {
                    let first = (layer * 2 + outer) * BLOCK_SIZE + token;
                    bytes.extend(self.token(sequence, first * ELEMENTS));
                }
                pad(&mut bytes, self.form == Form::Outers);
            }
            pad(&mut bytes, self.form == Form::Layers);
        }
        bytes
    }

    /// Its elements of a token, of which all ranks together have those from `first` on.
    fn token(&self, sequence: u64, first: u32) -> Vec<u8> {
        let width = ELEMENTS / self.size;
        let places = (0..width).map(|at| first + self.number * width + at);
        let element = |place: u32| {
            let mixed = (sequence ^ u64::from(place)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            ((mixed >> 40) as u16).to_le_bytes()
        };
        places.flat_map(element).collect()
    }
}
