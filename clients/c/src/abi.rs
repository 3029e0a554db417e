//! Functions of the C API. These comments appear in the header.

use crate::fault::{self, Fault};
use crate::publisher::{Config, Progress, Publisher as Open};
use crate::types::{
    Code, KVASIR_COPY_MODE_COUNTED, KVASIR_COPY_MODE_SET, Publisher, PublisherOptions,
    PublisherStatus, Stored,
};
use crate::{handles, read};
use kvasir_proto::types::CopyMode;
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

/// Runs the body of a call. Converts every error and panic to a code.
fn guarded(body: impl FnOnce() -> Result<(), Fault>) -> Code {
    // State that a panic may have left incomplete is behind its own locks, or ends with the publisher.
    let outcome = catch_unwind(AssertUnwindSafe(body));
    let panicked = |_panic| Err(Fault::Internal("a fault of the library: see stderr".to_owned()));
    match outcome.unwrap_or_else(panicked) {
        Ok(()) => Code::KVASIR_OK,
        Err(fault) => {
            fault::remember(&fault);
            fault.code()
        }
    }
}

/// Finds the publisher of a handle. Never dereferences the handle.
fn opened(publisher: *mut Publisher) -> Result<Arc<Open>, Fault> {
    handles::get(publisher.addr())
}

fn milliseconds(count: u32) -> Duration {
    Duration::from_millis(count.into())
}

/// Opens a publisher and starts its thread, which connects and reconnects. The peer (agent or
/// index) need not be running yet.
///
/// The options are not used after the call. On KVASIR_OK, *publisher is the new publisher: free it
/// with kvasir_publisher_free. A publisher does not survive a fork: open publishers in the child.
///
/// Errors: KVASIR_INVALID_ARGUMENT, KVASIR_FULL (1,024 publishers are open), KVASIR_INTERNAL (no
/// thread).
///
/// # Safety
/// options leads to a structure whose texts end with a 0 byte; publisher to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_publisher_open(
    options: *const PublisherOptions,
    publisher: *mut *mut Publisher,
) -> Code {
    guarded(|| {
        // SAFETY: as the caller says.
        let options = unsafe { read::structure(options, "options") }?;
        read::check_out(publisher, "publisher")?;
        // SAFETY: as the caller says, of the texts that the options lead to.
        let config = unsafe { config(options) }?;
        let handle = handles::insert(Open::open(&config)?)?;
        // SAFETY: as the caller says.
        unsafe { read::write(publisher, ptr::without_provenance_mut(handle)) };
        Ok(())
    })
}

/// # Safety
/// The texts end with a 0 byte and stay for `'a`.
unsafe fn config(options: &PublisherOptions) -> Result<Config<'_>, Fault> {
    // SAFETY: all of it as the caller says.
    let (endpoint, worker_id, model, tenant, source) = unsafe {
        (
            read::name(options.endpoint, "endpoint")?,
            read::name(options.worker_id, "worker_id")?,
            read::name(options.model, "model")?,
            read::optional_name(options.tenant, "tenant")?,
            read::optional_name(options.source, "source")?,
        )
    };
    let copy_mode = match options.copy_mode {
        KVASIR_COPY_MODE_SET => CopyMode::Set,
        KVASIR_COPY_MODE_COUNTED => CopyMode::Counted,
        other => {
            let problem = format!("is {other}, must be a KVASIR_COPY_MODE, 0 or 1");
            return Err(Fault::argument("copy_mode", problem));
        }
    };
    Ok(Config {
        endpoint,
        worker_id,
        model,
        tenant: tenant.unwrap_or_default(),
        source,
        block_size: options.block_size,
        rank: options.dp_rank,
        copy_mode,
        lease_ms: options.lease_ms,
        held_blocks_max: options.held_blocks_max,
        journal_bytes_max: options.journal_bytes_max,
    })
}

/// Publishes that blocks are now cached. Never waits for the peer. Threads may share a publisher.
///
/// The data behind stored is not used after the call: tokens are hashed before it returns. Unless
/// event_id is NULL, *event_id is set to the event's number. Each publisher numbers its events 0,
/// 1, 2 and so on.
///
/// Errors: KVASIR_INVALID_ARGUMENT, KVASIR_FULL (the event was not accepted), KVASIR_SHUT_DOWN,
/// KVASIR_BAD_HANDLE.
///
/// # Safety
/// stored leads to a structure whose pointers are NULL, or lead to the stated data; event_id is
/// NULL, or leads to a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_publish_stored(
    publisher: *mut Publisher,
    stored: *const Stored,
    event_id: *mut u64,
) -> Code {
    guarded(|| {
        let publisher = opened(publisher)?;
        // SAFETY: as the caller says.
        let stored = unsafe { read::structure(stored, "stored") }?;
        // SAFETY: as the caller says.
        let blocks = unsafe { read::StoredBlocks::read(stored, publisher.block_size()) }?;
        let id = publisher.stored(&blocks.new_blocks())?;
        // SAFETY: as the caller says.
        unsafe { read::write(event_id, id) };
        Ok(())
    })
}

/// Publishes that names_count blocks, 1 to 65,536, were evicted from a tier (a KVASIR_TIER).
/// Otherwise like kvasir_publish_stored, except that there is always room.
///
/// # Safety
/// names leads to names_count numbers; event_id is NULL, or leads to a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_publish_removed(
    publisher: *mut Publisher,
    names: *const u64,
    names_count: usize,
    tier: u32,
    event_id: *mut u64,
) -> Code {
    guarded(|| {
        let publisher = opened(publisher)?;
        // SAFETY: as the caller says.
        let names = unsafe { read::names(names, names_count) }?;
        let id = publisher.removed(&names, read::tier(tier)?)?;
        // SAFETY: as the caller says.
        unsafe { read::write(event_id, id) };
        Ok(())
    })
}

/// Publishes that the rank's blocks were removed from all tiers. Otherwise like
/// kvasir_publish_removed.
///
/// # Safety
/// event_id is NULL, or leads to a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_publish_all_cleared(
    publisher: *mut Publisher,
    event_id: *mut u64,
) -> Code {
    guarded(|| {
        let id = opened(publisher)?.all_cleared()?;
        // SAFETY: as the caller says.
        unsafe { read::write(event_id, id) };
        Ok(())
    })
}

/// Waits until the peer has accepted the publisher, at most timeout_ms milliseconds. Publishing
/// does not require this wait.
///
/// Errors: KVASIR_TIMEOUT, KVASIR_REFUSED, KVASIR_SHUT_DOWN, KVASIR_BAD_HANDLE.
#[unsafe(no_mangle)]
pub extern "C" fn kvasir_publisher_wait_connected(
    publisher: *mut Publisher,
    timeout_ms: u32,
) -> Code {
    guarded(|| opened(publisher)?.wait_connected(milliseconds(timeout_ms)))
}

/// Waits until the peer has all events published before, at most timeout_ms milliseconds. An agent
/// then has them in its journal, an index server in its index.
///
/// Errors: KVASIR_TIMEOUT, KVASIR_REFUSED, KVASIR_SHUT_DOWN (with events not delivered),
/// KVASIR_BAD_HANDLE.
#[unsafe(no_mangle)]
pub extern "C" fn kvasir_publisher_flush(publisher: *mut Publisher, timeout_ms: u32) -> Code {
    guarded(|| opened(publisher)?.flush(milliseconds(timeout_ms)))
}

/// Shuts the publisher down when the engine ends. Publishes that the engine's cache is gone, and
/// delivers all events within timeout_ms milliseconds. Later events are refused. A second call does
/// nothing. Does not free the publisher.
///
/// Errors: KVASIR_TIMEOUT and KVASIR_REFUSED (the publisher is shut down, but some events were not
/// delivered: the peer drops the source's blocks once the source has been silent for some time),
/// KVASIR_BAD_HANDLE.
#[unsafe(no_mangle)]
pub extern "C" fn kvasir_publisher_shutdown(publisher: *mut Publisher, timeout_ms: u32) -> Code {
    guarded(|| opened(publisher)?.shut_down(milliseconds(timeout_ms)))
}

/// Reads the state of a publisher, also after its shutdown.
///
/// Errors: KVASIR_INVALID_ARGUMENT, KVASIR_BAD_HANDLE.
///
/// # Safety
/// status leads to a structure whose struct_size is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvasir_publisher_get_status(
    publisher: *mut Publisher,
    status: *mut PublisherStatus,
) -> Code {
    guarded(|| {
        let progress = opened(publisher)?.progress();
        // SAFETY: as the caller says.
        unsafe { read::write_structure(status, "status", || publisher_status(&progress)) }
    })
}

/// Converts the progress to the C structure. A long error text is truncated.
fn publisher_status(progress: &Progress) -> PublisherStatus {
    let uplink = &progress.uplink;
    let mut status = PublisherStatus {
        struct_size: size_of::<PublisherStatus>(),
        head: progress.head,
        acknowledged: progress.acknowledged,
        dropped_events: progress.dropped_events,
        rejected_blocks: uplink.rejected_blocks,
        held_blocks: progress.held_blocks,
        streams: uplink.streams,
        retold: uplink.retold,
        connected: uplink.connected,
        refused: uplink.refused,
        error: [0; 256],
    };
    let text = uplink.error.as_deref().unwrap_or_default();
    // The last byte stays 0.
    let end = text.floor_char_boundary(status.error.len() - 1);
    for (to, from) in status.error.iter_mut().zip(text.bytes().take(end)) {
        *to = c_char::from_ne_bytes([from]);
    }
    status
}

/// Frees a publisher; its handle becomes invalid. Active calls of other threads end first. Without
/// kvasir_publisher_shutdown before, undelivered events are lost. The peer keeps the delivered
/// blocks until the source has been silent for some time.
///
/// Waits for the publisher's thread, about a second at most. NULL is allowed.
///
/// Errors: KVASIR_BAD_HANDLE.
#[unsafe(no_mangle)]
pub extern "C" fn kvasir_publisher_free(publisher: *mut Publisher) -> Code {
    guarded(|| {
        if publisher.is_null() {
            return Ok(());
        }
        handles::remove(publisher.addr()).map(drop)
    })
}

/// Error text of the last call on this thread that did not return KVASIR_OK; "" before the first
/// such call. UTF-8, ends with a 0 byte. The library owns the text: it is valid until the next
/// failed call on this thread, or the thread's end.
#[unsafe(no_mangle)]
pub extern "C" fn kvasir_last_error() -> *const c_char {
    fault::last()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn a_panic_is_a_code() {
        let code = guarded(|| panic!("out of bounds"));
        assert_eq!(code, Code::KVASIR_INTERNAL);
        // SAFETY: the text belongs to this thread, and no call intervenes.
        let text = unsafe { CStr::from_ptr(kvasir_last_error()) };
        assert_eq!(text, c"a fault of the library: see stderr");
    }
}
