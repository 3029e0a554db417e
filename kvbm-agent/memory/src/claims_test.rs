use super::{ClaimError, Claims};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

#[test]
fn claims_are_given_back_once() {
    let claims = Claims::new(2);
    let write = claims.write(0).expect("a claim");
    let read = write.into_read();
    let other = claims.read(0).expect("a second reader");
    drop(read);
    assert_eq!(claims.write(0).err(), Some(ClaimError::Read(0)));
    drop(other);
    assert_eq!(claims.is_free(0), Ok(true));
    assert!(claims.write(0).is_ok());
    assert_eq!(claims.write(2).err(), Some(ClaimError::Unknown { slot: 2, slots: 2 }));
}

#[test]
fn threads_exclude_one_another() {
    let claims = Claims::new(1);
    let inside = AtomicU32::new(0);
    let attempt = || {
        if let Ok(_claim) = claims.write(0) {
            assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
            inside.fetch_sub(1, Ordering::Relaxed);
        }
        if let Ok(_claim) = claims.read(0) {
            assert_eq!(inside.load(Ordering::Relaxed), 0);
        }
    };
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..2_000).for_each(|_| attempt()));
        }
    });
    assert_eq!(claims.is_free(0), Ok(true));
}
