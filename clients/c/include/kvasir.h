/* Kvasir for engines in C and C++: tells the agent beside the engine, or an index, what the engine holds.
 *
 * All functions may be called from any thread. All return a kvasir_code, and never let anything else of
 * the library out; where that is not KVASIR_OK, kvasir_last_error has a text for people. Texts are UTF-8
 * and end with a 0 byte. Nothing that a caller passes in is retained: it may be freed after the call. Times are
 * in milliseconds, blocks are counted, tokens never leave the process.
 *
 * Made of the code: do not edit it. `scripts/fix` makes it anew. */

#ifndef KVASIR_H
#define KVASIR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/*
 Memory of the accelerator.
 */
#define KVASIR_TIER_DEVICE 0

/*
 Memory of the host.
 */
#define KVASIR_TIER_HOST 1

/*
 Disks.
 */
#define KVASIR_TIER_DISK 2

/*
 Copy mode set: one removal removes a block, however often it was stored.
 */
#define KVASIR_COPY_MODE_SET 0

/*
 Copy mode counted: each store adds a copy and each removal removes one. A block is cached while
 a copy remains.
 */
#define KVASIR_COPY_MODE_COUNTED 1

/*
 Result of a call. For every code but KVASIR_OK, kvasir_last_error has the text.
 */
typedef enum kvasir_code {
  /*
   Success.
   */
  KVASIR_OK = 0,
  /*
   An argument is invalid. The error text names it and the valid values. The call had no
   effect.
   */
  KVASIR_INVALID_ARGUMENT = 1,
  /*
   The handle is no publisher, or the publisher was freed. The call had no effect.
   */
  KVASIR_BAD_HANDLE = 2,
  /*
   No room: the publisher's limit of held blocks, or the limit of open publishers, is reached.
   The call had no effect: the event was not accepted.
   */
  KVASIR_FULL = 3,
  /*
   The publisher was shut down. The call had no effect.
   */
  KVASIR_SHUT_DOWN = 4,
  /*
   The call timed out. No event is lost: delivery continues.
   */
  KVASIR_TIMEOUT = 5,
  /*
   The peer refuses the publisher, for example because of a wrong block size. The error text
   has the reason. The publisher retries with a backoff of up to 5 s, because the peer's
   configuration may be corrected. Events are accepted meanwhile.
   */
  KVASIR_REFUSED = 6,
  /*
   The system cannot start a thread, or this library has a bug, which is also written to
   stderr.
   */
  KVASIR_INTERNAL = 7,
} kvasir_code;

/*
 A publisher, as an opaque handle. Never dereference it.
 */
typedef struct kvasir_publisher kvasir_publisher;

/*
 Options of a publisher. Set struct_size and the four required fields. In the other fields, 0 and
 NULL mean the default.
 */
typedef struct kvasir_publisher_options {
  /*
   sizeof(kvasir_publisher_options). The library checks by it that header and library match.
   */
  size_t struct_size;
  /*
   Required: host:port, or http://host:port, of the agent's gRPC port (--listen), or of an index.
   */
  const char *endpoint;
  /*
   Required: the worker's id, as configured at the agent (--worker-id). 1 to 256 bytes, like
   all names here.
   */
  const char *worker_id;
  /*
   Required: the worker's model.
   */
  const char *model;
  /*
   The worker's tenant; "" by default.
   */
  const char *tenant;
  /*
   Name of this publisher, unique within the worker; "rank-N" by default, with the rank's number.
   */
  const char *source;
  /*
   Required: tokens per block. Must equal the agent's block size.
   */
  uint32_t block_size;
  /*
   The data-parallel rank that holds the blocks, below 1,024. An engine with several ranks
   opens a publisher for each.
   */
  uint32_t dp_rank;
  /*
   KVASIR_COPY_MODE_SET or KVASIR_COPY_MODE_COUNTED. Must equal the agent's copy mode, unless
   the agent consolidates sources.
   */
  uint32_t copy_mode;
  /*
   For an index only: registers the worker with this lease in milliseconds, 1,000 to 3,600,000,
   and removes it at shutdown. 0: the worker is registered elsewhere, for example by an agent.
   */
  uint32_t lease_ms;
  /*
   Maximum number of held blocks, 44 bytes of memory each; 4,194,304 by default.
   */
  size_t held_blocks_max;
  /*
   Maximum bytes of events retained for a peer that connects late or again; 33,554,432 by
   default. A peer that lacks older events receives all held blocks instead, for which twice
   their bytes are retained.
   */
  size_t journal_bytes_max;
} kvasir_publisher_options;

/*
 An image, sound or other multimodal item among the tokens.
 */
typedef struct kvasir_multimodal {
  /*
   Identifier of the content, 1 to 256 bytes: a hash of 64 hexadecimal digits, or any other
   text.
   */
  const char *identifier;
  /*
   Index of the item's first token among the tokens of this call.
   */
  size_t start;
  /*
   Index one past the item's last token.
   */
  size_t end;
} kvasir_multimodal;

/*
 Blocks that are now cached, each the parent of the next. Give their content by tokens or by
 local_hashes. Give neither to add a tier to known blocks.
 */
typedef struct kvasir_stored {
  /*
   sizeof(kvasir_stored).
   */
  size_t struct_size;
  /*
   The engine's own hashes of the blocks.
   */
  const uint64_t *names;
  /*
   Number of names, 1 to 65,536.
   */
  size_t names_count;
  /*
   Name of the block before the first; NULL at the start of a prompt.
   */
  const uint64_t *parent;
  /*
   Token ids: block-size tokens for each name. Hashed before the call returns, and neither
   retained nor sent. NULL for none.
   */
  const uint32_t *tokens;
  /*
   Number of tokens: names_count times the block size.
   */
  size_t tokens_count;
  /*
   Hashes of each block's own tokens, one for each name. NULL for none.
   */
  const uint64_t *local_hashes;
  /*
   Number of local hashes: names_count.
   */
  size_t local_hashes_count;
  /*
   With tokens: the LoRA adapter's name; NULL for none.
   */
  const char *lora_name;
  /*
   With tokens: the cache salt; NULL for none.
   */
  const char *cache_salt;
  /*
   With tokens: multimodal items among the tokens; NULL for none.
   */
  const struct kvasir_multimodal *multimodal;
  /*
   Number of multimodal items, at most 1,024.
   */
  size_t multimodal_count;
  /*
   Tier of the blocks: a KVASIR_TIER.
   */
  uint32_t tier;
} kvasir_stored;

/*
 State of a publisher.
 */
typedef struct kvasir_publisher_status {
  /*
   sizeof(kvasir_publisher_status): set it before the call.
   */
  size_t struct_size;
  /*
   Number of batches so far, and the number of the next batch. An event is one batch, or
   several if it is large.
   */
  uint64_t head;
  /*
   The peer has all batches below this number. If it equals head, the peer has all held blocks.
   */
  uint64_t acknowledged;
  /*
   Events not accepted for lack of room: each such call returned KVASIR_FULL.
   */
  uint64_t dropped_events;
  /*
   Block operations that the peer refused, because of its own limit or because the rank belongs
   to another source. The index then credits too little.
   */
  uint64_t rejected_blocks;
  /*
   Blocks held now.
   */
  uint64_t held_blocks;
  /*
   Streams opened so far.
   */
  uint64_t streams;
  /*
   Times that the peer lacked events no longer retained, and received all held blocks instead.
   */
  uint64_t retold;
  /*
   A stream is open.
   */
  bool connected;
  /*
   The peer refused the stream, for the reason in error. The publisher keeps retrying.
   */
  bool refused;
  /*
   Why the last stream ended or could not be opened; "" once a stream is accepted. Ends with a
   0 byte, and is truncated to fit.
   */
  char error[256];
} kvasir_publisher_status;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Opens a publisher and starts its thread, which connects and reconnects. The peer (agent or
 index) need not be running yet.

 The options are not used after the call. On KVASIR_OK, *publisher is the new publisher: free it
 with kvasir_publisher_free. A publisher does not survive a fork: open publishers in the child.

 Errors: KVASIR_INVALID_ARGUMENT, KVASIR_FULL (1,024 publishers are open), KVASIR_INTERNAL (no
 thread).

 # Safety
 options leads to a structure whose texts end with a 0 byte; publisher to a place for a pointer.
 */
enum kvasir_code kvasir_publisher_open(const struct kvasir_publisher_options *options,
                                       struct kvasir_publisher **publisher);

/*
 Publishes that blocks are now cached. Never waits for the peer. Threads may share a publisher.

 The data behind stored is not used after the call: tokens are hashed before it returns. Unless
 event_id is NULL, *event_id is set to the event's number. Each publisher numbers its events 0,
 1, 2 and so on.

 Errors: KVASIR_INVALID_ARGUMENT, KVASIR_FULL (the event was not accepted), KVASIR_SHUT_DOWN,
 KVASIR_BAD_HANDLE.

 # Safety
 stored leads to a structure whose pointers are NULL, or lead to the stated data; event_id is
 NULL, or leads to a place for a number.
 */
enum kvasir_code kvasir_publish_stored(struct kvasir_publisher *publisher,
                                       const struct kvasir_stored *stored,
                                       uint64_t *event_id);

/*
 Publishes that names_count blocks, 1 to 65,536, were evicted from a tier (a KVASIR_TIER).
 Otherwise like kvasir_publish_stored, except that there is always room.

 # Safety
 names leads to names_count numbers; event_id is NULL, or leads to a place for a number.
 */
enum kvasir_code kvasir_publish_removed(struct kvasir_publisher *publisher,
                                        const uint64_t *names,
                                        size_t names_count,
                                        uint32_t tier,
                                        uint64_t *event_id);

/*
 Publishes that the rank's blocks were removed from all tiers. Otherwise like
 kvasir_publish_removed.

 # Safety
 event_id is NULL, or leads to a place for a number.
 */
enum kvasir_code kvasir_publish_all_cleared(struct kvasir_publisher *publisher, uint64_t *event_id);

/*
 Waits until the peer has accepted the publisher, at most timeout_ms milliseconds. Publishing
 does not require this wait.

 Errors: KVASIR_TIMEOUT, KVASIR_REFUSED, KVASIR_SHUT_DOWN, KVASIR_BAD_HANDLE.
 */
enum kvasir_code kvasir_publisher_wait_connected(struct kvasir_publisher *publisher,
                                                 uint32_t timeout_ms);

/*
 Waits until the peer has all events published before, at most timeout_ms milliseconds. An agent
 then has them in its journal, an index server in its index.

 Errors: KVASIR_TIMEOUT, KVASIR_REFUSED, KVASIR_SHUT_DOWN (with events not delivered),
 KVASIR_BAD_HANDLE.
 */
enum kvasir_code kvasir_publisher_flush(struct kvasir_publisher *publisher, uint32_t timeout_ms);

/*
 Shuts the publisher down when the engine ends. Publishes that the engine's cache is gone, and
 delivers all events within timeout_ms milliseconds. Later events are refused. A second call does
 nothing. Does not free the publisher.

 Errors: KVASIR_TIMEOUT and KVASIR_REFUSED (the publisher is shut down, but some events were not
 delivered: the peer drops the source's blocks once the source has been silent for some time),
 KVASIR_BAD_HANDLE.
 */
enum kvasir_code kvasir_publisher_shutdown(struct kvasir_publisher *publisher, uint32_t timeout_ms);

/*
 Reads the state of a publisher, also after its shutdown.

 Errors: KVASIR_INVALID_ARGUMENT, KVASIR_BAD_HANDLE.

 # Safety
 status leads to a structure whose struct_size is set.
 */
enum kvasir_code kvasir_publisher_get_status(struct kvasir_publisher *publisher,
                                             struct kvasir_publisher_status *status);

/*
 Frees a publisher; its handle becomes invalid. Active calls of other threads end first. Without
 kvasir_publisher_shutdown before, undelivered events are lost. The peer keeps the delivered
 blocks until the source has been silent for some time.

 Waits for the publisher's thread, about a second at most. NULL is allowed.

 Errors: KVASIR_BAD_HANDLE.
 */
enum kvasir_code kvasir_publisher_free(struct kvasir_publisher *publisher);

/*
 Error text of the last call on this thread that did not return KVASIR_OK; "" before the first
 such call. UTF-8, ends with a 0 byte. The library owns the text: it is valid until the next
 failed call on this thread, or the thread's end.
 */
const char *kvasir_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KVASIR_H */
