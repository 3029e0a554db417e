use super::{Medium, read_exact, write_all};
use crate::error::TransferError;
use parking_lot::Mutex;
use std::io;

/// Moves a limited number of bytes per call, and is interrupted before every other call.
#[derive(Debug)]
struct Reluctant {
    bytes: Mutex<Vec<u8>>,
    most: usize,
    calls: Mutex<usize>,
}

impl Reluctant {
    fn new(bytes: usize, most: usize) -> Self {
        Self { bytes: Mutex::new(vec![0; bytes]), most, calls: Mutex::new(0) }
    }

    fn call(&self) -> io::Result<()> {
        let mut calls = self.calls.lock();
        *calls += 1;
        if *calls % 2 == 1 { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    }
}

impl Medium for Reluctant {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.call()?;
        let bytes = self.bytes.lock();
        let from = bytes.get(usize::try_from(offset).expect("small")..).unwrap_or_default();
        let moved = from.len().min(into.len()).min(self.most);
        into[..moved].copy_from_slice(&from[..moved]);
        Ok(moved)
    }

    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        self.call()?;
        let mut bytes = self.bytes.lock();
        let into = bytes.get_mut(usize::try_from(offset).expect("small")..).unwrap_or_default();
        let moved = from.len().min(into.len()).min(self.most);
        into[..moved].copy_from_slice(&from[..moved]);
        Ok(moved)
    }
}

#[test]
fn short_and_interrupted_calls_go_on() {
    let block: Vec<u8> = (0..=250).cycle().take(20_000).collect();
    for most in [4096, 5000, 8192, 19_999, 20_000] {
        let medium = Reluctant::new(30_000, most);
        write_all(&medium, &block, 4096).expect("a whole write");
        let mut back = vec![0; 20_000];
        read_exact(&medium, &mut back, 4096).expect("a whole read");
        assert_eq!(back, block, "at most {most} bytes a call");
    }
}

#[test]
fn what_ends_too_early_or_never_gets_anywhere_is_short() {
    let medium = Reluctant::new(10_000, 100_000);
    let outcome = read_exact(&medium, &mut vec![0; 20_000], 0);
    assert!(matches!(outcome, Err(TransferError::Short { wanted: 20_000, .. })), "{outcome:?}");
    let medium = Reluctant::new(30_000, 100);
    let outcome = write_all(&medium, &[1; 20_000], 0);
    assert!(matches!(outcome, Err(TransferError::Short { wanted: 20_000, .. })), "{outcome:?}");
}
