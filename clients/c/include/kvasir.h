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
 Storing a block says that it is held, removing it that it is not, however often it was stored.
 */
#define KVASIR_COPY_MODE_SET 0

/*
 Storing a block is one more copy of it, removing it one less; it is held while there is one.
 */
#define KVASIR_COPY_MODE_COUNTED 1

/*
 What a call comes to. Of any but KVASIR_OK, kvasir_last_error has the text.
 */
typedef enum kvasir_code {
  /*
   Done.
   */
  KVASIR_OK = 0,
  /*
   An argument cannot be used; the text names it, and what to give. Nothing was done.
   */
  KVASIR_INVALID_ARGUMENT = 1,
  /*
   This is no publisher, or it was freed. Nothing was done.
   */
  KVASIR_BAD_HANDLE = 2,
  /*
   There is no room: as many blocks are held as the publisher may remember, or as many publishers are
   open as may be. Nothing was done, and no event is lost in silence: this event was not taken.
   */
  KVASIR_FULL = 3,
  /*
   The publisher was shut down. Nothing was done.
   */
  KVASIR_SHUT_DOWN = 4,
  /*
   The time was over first. Nothing is lost by it: what was published is still on its way.
   */
  KVASIR_TIMEOUT = 5,
  /*
   The other side refuses the publisher, for a wrong block size, say; the text has its reason. It
   is tried again, every 5 s at last, since it may be the other side that is wrong and is mended:
   events are taken meanwhile.
   */
  KVASIR_REFUSED = 6,
  /*
   The system has no thread for us, or this library has a fault, which is also written to stderr.
   */
  KVASIR_INTERNAL = 7,
} kvasir_code;

/*
 A publisher. Only its address means something, and only to this library.
 */
typedef struct kvasir_publisher kvasir_publisher;

/*
 Who publishes, and where to. Set struct_size, the four that are required, and what you need of the
 rest: 0 and NULL mean the default.
 */
typedef struct kvasir_publisher_options {
  /*
   sizeof(kvasir_publisher_options): tells that header and library fit each other.
   */
  size_t struct_size;
  /*
   Required: host:port, or http://host:port, of the agent's gRPC port (--listen), or of an index.
   */
  const char *endpoint;
  /*
   Required: the worker, as the agent knows it (--worker-id). 1 to 256 bytes, as all names here.
   */
  const char *worker_id;
  /*
   Required: its model.
   */
  const char *model;
  /*
   Its tenant; "" by default.
   */
  const char *tenant;
  /*
   Name of this publisher, unique within the worker; "rank-N" by default, with the rank's number.
   */
  const char *source;
  /*
   Required: tokens per block. Another than the agent's is refused.
   */
  uint32_t block_size;
  /*
   The data-parallel rank that holds the blocks, below 1,024. An engine with several has a publisher for
   each.
   */
  uint32_t dp_rank;
  /*
   KVASIR_COPY_MODE_SET or KVASIR_COPY_MODE_COUNTED; the agent's, if it is not configured to
   consolidate.
   */
  uint32_t copy_mode;
  /*
   For an index only: the worker is registered there, with this lease in milliseconds, 1,000 to
   3,600,000, and removed at shutdown. 0: it is registered elsewhere, such as by an agent.
   */
  uint32_t lease_ms;
  /*
   Most blocks that are remembered as held, 44 bytes each; 4,194,304 by default.
   */
  size_t held_blocks_max;
  /*
   Most bytes of events that are retained, for a peer that connects late or again; 33,554,432 by default.
   A peer that lacks more is sent all that is held instead, for which twice the bytes of that are retained.
   */
  size_t journal_bytes_max;
} kvasir_publisher_options;

/*
 What is in a picture, a sound or the like among the tokens.
 */
typedef struct kvasir_multimodal {
  /*
   What identifies the content, 1 to 256 bytes: its hash in 64 hexadecimal digits, or any other text.
   */
  const char *identifier;
  /*
   Its first token, by its place among the tokens of this call.
   */
  size_t start;
  /*
   One past its last token.
   */
  size_t end;
} kvasir_multimodal;

/*
 Blocks that are now held, each the parent of the next. What is in them is given by tokens, or by
 local_hashes, or not at all where the names are known and now lie in one more tier.
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
   How many, 1 to 65,536.
   */
  size_t names_count;
  /*
   The block before the first; NULL at the start of a prompt.
   */
  const uint64_t *parent;
  /*
   Token ids, a block size for each name. They are hashed before the call returns, and neither
   retained nor sent. NULL for none.
   */
  const uint32_t *tokens;
  /*
   How many: names_count times the block size.
   */
  size_t tokens_count;
  /*
   Hashes of the blocks' tokens by themselves, one for each name. NULL for none.
   */
  const uint64_t *local_hashes;
  /*
   How many: names_count.
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
   With tokens: multimodal content among them; NULL for none.
   */
  const struct kvasir_multimodal *multimodal;
  /*
   How many, at most 1,024.
   */
  size_t multimodal_count;
  /*
   Where the blocks lie: a KVASIR_TIER.
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
   Batches so far, numbered from 0: the next has this number. An event is one batch, or several if
   it is large.
   */
  uint64_t head;
  /*
   The other side has all batches below this number, and with them all that is held, if it is head.
   */
  uint64_t acknowledged;
  /*
   Events that were not taken since there was no room: each such call returned KVASIR_FULL.
   */
  uint64_t dropped_events;
  /*
   Block operations that the other side did not take, for a limit of its own or because the rank is
   another source's: the index credits less.
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
   Times that the other side lacked more than was retained, and was sent all that is held.
   */
  uint64_t retold;
  /*
   A stream is open.
   */
  bool connected;
  /*
   It was refused, for the reason in error; it is tried again all the same.
   */
  bool refused;
  /*
   Why the last stream ended or could not be opened; "" once one is accepted. Ends with a 0 byte, and
   is cut to fit.
   */
  char error[256];
} kvasir_publisher_status;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Opens a publisher and starts its thread, which connects, and connects again whenever that is needed. The other
 side need not be there yet.

 Nothing of options is used after the call. On KVASIR_OK, *publisher is the new publisher: give it to
 kvasir_publisher_free in the end. It does not outlive a fork: open publishers in the child.

 KVASIR_INVALID_ARGUMENT, KVASIR_FULL (1,024 publishers are open), KVASIR_INTERNAL (no thread).

 # Safety
 options leads to a structure whose texts end with a 0 byte; publisher to a place for a pointer.
 */
enum kvasir_code kvasir_publisher_open(const struct kvasir_publisher_options *options,
                                       struct kvasir_publisher **publisher);

/*
 Blocks are held now. Never waits for the other side; threads may share a publisher.

 Nothing that stored leads to is used after the call: tokens are hashed before it returns. Unless
 event_id is NULL, *event_id is the event's number among all of this publisher: from 0, one more each
 time.

 KVASIR_INVALID_ARGUMENT, KVASIR_FULL (the event was not taken), KVASIR_SHUT_DOWN, KVASIR_BAD_HANDLE.

 # Safety
 stored leads to a structure whose pointers are NULL, or lead to what it says; event_id is NULL, or
 leads to a place for a number.
 */
enum kvasir_code kvasir_publish_stored(struct kvasir_publisher *publisher,
                                       const struct kvasir_stored *stored,
                                       uint64_t *event_id);

/*
 Blocks are no longer held in a tier (a KVASIR_TIER): names_count of them, 1 to 65,536. Otherwise as
 kvasir_publish_stored, but that there is always room.

 # Safety
 names leads to names_count numbers; event_id is NULL, or leads to a place for a number.
 */
enum kvasir_code kvasir_publish_removed(struct kvasir_publisher *publisher,
                                        const uint64_t *names,
                                        size_t names_count,
                                        uint32_t tier,
                                        uint64_t *event_id);

/*
 The rank holds nothing any more, in any tier. Otherwise as kvasir_publish_removed.

 # Safety
 event_id is NULL, or leads to a place for a number.
 */
enum kvasir_code kvasir_publish_all_cleared(struct kvasir_publisher *publisher, uint64_t *event_id);

/*
 Waits until the other side has accepted the publisher, for timeout_ms milliseconds at most. To publish,
 nobody needs to wait.

 KVASIR_TIMEOUT, KVASIR_REFUSED, KVASIR_SHUT_DOWN, KVASIR_BAD_HANDLE.
 */
enum kvasir_code kvasir_publisher_wait_connected(struct kvasir_publisher *publisher,
                                                 uint32_t timeout_ms);

/*
 Waits until the other side has everything that was published before, for timeout_ms milliseconds at
 most. An agent that has it has it in its journal; an index has it in its index.

 KVASIR_TIMEOUT, KVASIR_REFUSED, KVASIR_SHUT_DOWN (and not all was delivered), KVASIR_BAD_HANDLE.
 */
enum kvasir_code kvasir_publisher_flush(struct kvasir_publisher *publisher, uint32_t timeout_ms);

/*
 The engine ends: publishes that its cache is gone, and delivers that with all that was published before,
 within timeout_ms milliseconds. Afterwards nothing is taken any more. A second call does nothing.
 The publisher is not freed by it.

 KVASIR_TIMEOUT and KVASIR_REFUSED (it is shut down, and not all was delivered: the other side drops the
 source's blocks after receiving nothing from it for some time), KVASIR_BAD_HANDLE.
 */
enum kvasir_code kvasir_publisher_shutdown(struct kvasir_publisher *publisher,
                                           uint32_t timeout_ms);

/*
 State of the publisher, also after it was shut down.

 KVASIR_INVALID_ARGUMENT, KVASIR_BAD_HANDLE.

 # Safety
 status leads to a structure of which struct_size is set.
 */
enum kvasir_code kvasir_publisher_get_status(struct kvasir_publisher *publisher,
                                             struct kvasir_publisher_status *status);

/*
 Frees a publisher, whose handle is no publisher's from then on. Calls of other threads that are under way
 come to their ends first. Without kvasir_publisher_shutdown before, what was not delivered yet is not, and the other
 side holds what was delivered until it has received nothing from the source for some time.

 Waits for the publisher's thread, about a second at most. NULL is fine.

 KVASIR_BAD_HANDLE.
 */
enum kvasir_code kvasir_publisher_free(struct kvasir_publisher *publisher);

/*
 The text of the last call on this thread that did not return KVASIR_OK; "" before the first. It is the
 library's, UTF-8, ends with a 0 byte, and is there until the next such call on this thread, or its end.
 */
const char *kvasir_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KVASIR_H */
