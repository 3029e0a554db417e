/* A publisher that is told on stdin what to do, a line at a time, and answers each with a line: the code of
 * the call as a number, then what there is to say. */

#include "kvasir.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_SIZE 4
#define THREAD_BLOCKS 2

static kvasir_publisher *publisher;

static void answer(kvasir_code code, const char *text) {
    printf("%d %s\n", (int)code, code == KVASIR_OK ? text : kvasir_last_error());
    fflush(stdout);
}

/* The tokens of a block say its name again and again. */
static void fill(uint32_t *tokens, uint64_t name) {
    for (int at = 0; at < BLOCK_SIZE; at++) {
        tokens[at] = (uint32_t)name;
    }
}

/* Stores a chain of blocks with consecutive names. */
static kvasir_code store(uint64_t first, size_t count, uint64_t *id) {
    uint64_t *names = calloc(count, sizeof *names);
    uint32_t *tokens = calloc(count * BLOCK_SIZE, sizeof *tokens);
    if (names == NULL || tokens == NULL) {
        abort();
    }
    for (size_t at = 0; at < count; at++) {
        names[at] = first + at;
        fill(tokens + at * BLOCK_SIZE, names[at]);
    }
    kvasir_stored stored = {
        .struct_size = sizeof stored,
        .names = names,
        .names_count = count,
        .tokens = tokens,
        .tokens_count = count * BLOCK_SIZE,
    };
    kvasir_code code = kvasir_publish_stored(publisher, &stored, id);
    free(names);
    free(tokens);
    return code;
}

typedef struct job {
    uint64_t first;
    uint64_t events;
    int failed;
} job;

/* Stores chains of two blocks, and removes every fourth chain again. Ids go up. */
static void *publish(void *argument) {
    job *at = argument;
    uint64_t last = 0;
    for (uint64_t event = 0; event < at->events; event++) {
        uint64_t id = 0, first = at->first + event * THREAD_BLOCKS;
        at->failed |= store(first, THREAD_BLOCKS, &id) != KVASIR_OK || (event > 0 && id <= last);
        last = id;
        if (event % 4 == 3) {
            uint64_t gone[THREAD_BLOCKS] = {first, first + 1};
            at->failed |= kvasir_publish_removed(publisher, gone, THREAD_BLOCKS, KVASIR_TIER_DEVICE,
                                                 &id) != KVASIR_OK ||
                          id <= last;
            last = id;
        }
    }
    return NULL;
}

static void threads(uint64_t count, uint64_t events) {
    pthread_t running[16];
    job jobs[16];
    int failed = 0;
    for (uint64_t at = 0; at < count; at++) {
        jobs[at] = (job){.first = 1 + at * events * THREAD_BLOCKS, .events = events};
        if (pthread_create(&running[at], NULL, publish, &jobs[at]) != 0) {
            abort();
        }
    }
    for (uint64_t at = 0; at < count; at++) {
        pthread_join(running[at], NULL);
        failed |= jobs[at].failed;
    }
    answer(failed ? KVASIR_INTERNAL : KVASIR_OK, "published");
}

static void status(void) {
    kvasir_publisher_status at = {.struct_size = sizeof at};
    kvasir_code code = kvasir_publisher_get_status(publisher, &at);
    char text[512];
    snprintf(text, sizeof text,
             "head=%" PRIu64 " acknowledged=%" PRIu64 " dropped=%" PRIu64 " rejected=%" PRIu64
             " held=%" PRIu64 " streams=%" PRIu64 " retold=%" PRIu64 " connected=%d refused=%d"
             " error=%s",
             at.head, at.acknowledged, at.dropped_events, at.rejected_blocks, at.held_blocks,
             at.streams, at.retold, at.connected, at.refused, at.error);
    answer(code, text);
}

static void number(kvasir_code code, const uint64_t *id) {
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, *id);
    answer(code, text);
}

int main(void) {
    char line[512], word[32], url[128], worker[64], source[64];
    uint64_t first, count, id = 0;
    while (fgets(line, sizeof line, stdin) != NULL) {
        unsigned milliseconds, block_size, rank, lease;
        size_t held, bytes;
        if (sscanf(line, "open %127s %63s %63s %u %u %u %zu %zu", url, worker, source, &block_size,
                   &rank, &lease, &held, &bytes) == 8) {
            kvasir_publisher_options options = {
                .struct_size = sizeof options,
                .endpoint = url,
                .worker_id = worker,
                .model = "model",
                .source = source,
                .block_size = block_size,
                .dp_rank = rank,
                .lease_ms = lease,
                .held_blocks_max = held,
                .journal_bytes_max = bytes,
            };
            answer(kvasir_publisher_open(&options, &publisher), "open");
        } else if (sscanf(line, "store %" SCNu64 " %" SCNu64, &first, &count) == 2) {
            number(store(first, (size_t)count, &id), &id);
        } else if (sscanf(line, "remove %" SCNu64, &first) == 1) {
            number(kvasir_publish_removed(publisher, &first, 1, KVASIR_TIER_DEVICE, &id), &id);
        } else if (sscanf(line, "threads %" SCNu64 " %" SCNu64, &count, &first) == 2 && count <= 16) {
            threads(count, first);
        } else if (sscanf(line, "connect %u", &milliseconds) == 1) {
            answer(kvasir_publisher_wait_connected(publisher, milliseconds), "connected");
        } else if (sscanf(line, "flush %u", &milliseconds) == 1) {
            answer(kvasir_publisher_flush(publisher, milliseconds), "flushed");
        } else if (sscanf(line, "shutdown %u", &milliseconds) == 1) {
            answer(kvasir_publisher_shutdown(publisher, milliseconds), "shut down");
        } else if (sscanf(line, "%31s", word) == 1 && strcmp(word, "clear") == 0) {
            number(kvasir_publish_all_cleared(publisher, &id), &id);
        } else if (strcmp(word, "status") == 0) {
            status();
        } else if (strcmp(word, "free") == 0) {
            answer(kvasir_publisher_free(publisher), "freed");
        } else {
            fprintf(stderr, "not understood: %s", line);
            return 64;
        }
    }
    return 0;
}
