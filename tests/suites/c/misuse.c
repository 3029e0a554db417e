/* What callers get wrong: each is a code with a text that names it, and nothing worse. */

#include "kvasir.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

static void expect(int line, kvasir_code got, kvasir_code wanted, const char *text) {
    const char *said = wanted == KVASIR_OK ? "" : kvasir_last_error();
    if (got != wanted || strstr(said, text) == NULL) {
        fprintf(stderr, "line %d: code %d (%s), not %d (%s)\n", line, (int)got, said, (int)wanted, text);
        failures++;
    }
}
#define EXPECT(call, wanted, text) expect(__LINE__, (call), (wanted), (text))

static kvasir_publisher_options valid(void) {
    kvasir_publisher_options options = {
        .struct_size = sizeof options,
        .endpoint = "http://127.0.0.1:9",
        .worker_id = "worker-0",
        .model = "model",
        .block_size = 4,
    };
    return options;
}

static void options(void) {
    kvasir_publisher *publisher = NULL;
    kvasir_publisher_options at = valid();
    char long_name[300];
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = 0;
    EXPECT(kvasir_publisher_open(NULL, &publisher), KVASIR_INVALID_ARGUMENT, "options is NULL");
    EXPECT(kvasir_publisher_open(&at, NULL), KVASIR_INVALID_ARGUMENT, "publisher is NULL");
    EXPECT(kvasir_publisher_open((const kvasir_publisher_options *)((const char *)&at + 1), &publisher),
           KVASIR_INVALID_ARGUMENT, "not aligned");
    at.struct_size = 8;
    EXPECT(kvasir_publisher_open(&at, &publisher), KVASIR_INVALID_ARGUMENT, "options.struct_size is 8");
    at = valid();
    at.endpoint = NULL;
    EXPECT(kvasir_publisher_open(&at, &publisher), KVASIR_INVALID_ARGUMENT, "endpoint is NULL");
    at.endpoint = "https://127.0.0.1:50052";
    EXPECT(kvasir_publisher_open(&at, &publisher), KVASIR_INVALID_ARGUMENT, "this library has no TLS");
    at = valid();
    at.worker_id = "";
    EXPECT(kvasir_publisher_open(&at, &publisher), KVASIR_INVALID_ARGUMENT, "worker_id");
    at.worker_id = long_name;
    EXPECT(kvasir_publisher_open(&at, &publisher), KVASIR_INVALID_ARGUMENT, "within 256 bytes");
    at.worker_id = "\xff";
    EXPECT(kvasir_publisher_open(&at, &publisher), KVASIR_INVALID_ARGUMENT, "worker_id invalid utf-8");
    at = valid();
    at.block_size = 0;
    EXPECT(kvasir_publisher_open(&at, &publisher), KVASIR_INVALID_ARGUMENT, "block_size");
    at = valid();
    at.dp_rank = 1024;
    EXPECT(kvasir_publisher_open(&at, &publisher), KVASIR_INVALID_ARGUMENT, "dp_rank is 1024");
    at = valid();
    at.copy_mode = 2;
    EXPECT(kvasir_publisher_open(&at, &publisher), KVASIR_INVALID_ARGUMENT, "copy_mode is 2");
    at = valid();
    at.lease_ms = 999;
    EXPECT(kvasir_publisher_open(&at, &publisher), KVASIR_INVALID_ARGUMENT, "lease_ms");
    at = valid();
    at.held_blocks_max = (size_t)-1;
    EXPECT(kvasir_publisher_open(&at, &publisher), KVASIR_INVALID_ARGUMENT, "held_blocks_max");
    if (publisher != NULL) {
        failures++;
    }
}

static void events(kvasir_publisher *publisher) {
    uint64_t names[2] = {11, 12}, parent = 10, id = 77;
    uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    kvasir_multimodal image = {.identifier = "image", .start = 1, .end = 9};
    kvasir_stored good = {
        .struct_size = sizeof good,
        .names = names,
        .names_count = 2,
        .parent = &parent,
        .tokens = tokens,
        .tokens_count = 8,
    };
    kvasir_stored at = good;
    EXPECT(kvasir_publish_stored(publisher, NULL, NULL), KVASIR_INVALID_ARGUMENT, "stored is NULL");
    at.struct_size = 0;
    EXPECT(kvasir_publish_stored(publisher, &at, &id), KVASIR_INVALID_ARGUMENT, "stored.struct_size is 0");
    at = good;
    at.names = NULL;
    EXPECT(kvasir_publish_stored(publisher, &at, &id), KVASIR_INVALID_ARGUMENT, "names is NULL");
    at = good;
    at.names_count = 0;
    EXPECT(kvasir_publish_stored(publisher, &at, &id), KVASIR_INVALID_ARGUMENT, "names must not be empty");
    at.names_count = (size_t)-1;
    EXPECT(kvasir_publish_stored(publisher, &at, &id), KVASIR_INVALID_ARGUMENT, "the limit is 65536");
    at = good;
    at.tokens_count = 7;
    EXPECT(kvasir_publish_stored(publisher, &at, &id), KVASIR_INVALID_ARGUMENT, "give 8");
    at.tokens_count = (size_t)-1;
    EXPECT(kvasir_publish_stored(publisher, &at, &id), KVASIR_INVALID_ARGUMENT, "tokens has");
    at = good;
    at.local_hashes = names;
    at.local_hashes_count = 2;
    EXPECT(kvasir_publish_stored(publisher, &at, &id), KVASIR_INVALID_ARGUMENT, "give one of them");
    at.tokens = NULL;
    at.tokens_count = 0;
    at.local_hashes_count = 1;
    EXPECT(kvasir_publish_stored(publisher, &at, &id), KVASIR_INVALID_ARGUMENT, "give one for each");
    at.cache_salt = "salt";
    EXPECT(kvasir_publish_stored(publisher, &at, &id), KVASIR_INVALID_ARGUMENT, "cache_salt goes with tokens");
    at = good;
    at.tier = 3;
    EXPECT(kvasir_publish_stored(publisher, &at, &id), KVASIR_INVALID_ARGUMENT, "tier is 3");
    at = good;
    at.multimodal = &image;
    at.multimodal_count = 1;
    EXPECT(kvasir_publish_stored(publisher, &at, &id), KVASIR_INVALID_ARGUMENT, "1 to 9 is not within 8");
    image.end = 8;
    image.identifier = NULL;
    EXPECT(kvasir_publish_stored(publisher, &at, &id), KVASIR_INVALID_ARGUMENT, "identifier");
    at = good;
    at.tokens = NULL;
    at.tokens_count = 0;
    EXPECT(kvasir_publish_stored(publisher, &at, &id), KVASIR_INVALID_ARGUMENT, "parent must not be set");
    EXPECT(kvasir_publish_removed(publisher, names, 0, KVASIR_TIER_DEVICE, NULL), KVASIR_INVALID_ARGUMENT,
           "names must not be empty");
    EXPECT(kvasir_publish_removed(publisher, NULL, 1, KVASIR_TIER_DEVICE, NULL), KVASIR_INVALID_ARGUMENT,
           "names is NULL");
    EXPECT(kvasir_publish_removed(publisher, names, 1, 9, NULL), KVASIR_INVALID_ARGUMENT, "tier is 9");
    if (id != 77) {
        failures++;
    }
    /* Nothing of that used an id. */
    at = good;
    image.identifier = "image";
    at.multimodal = &image;
    at.multimodal_count = 1;
    at.lora_name = "lora";
    at.cache_salt = "salt";
    EXPECT(kvasir_publish_stored(publisher, &at, &id), KVASIR_OK, "");
    EXPECT(kvasir_publish_all_cleared(publisher, NULL), KVASIR_OK, "");
    if (id != 0) {
        failures++;
    }
}

static void ends(kvasir_publisher *publisher) {
    uint64_t id;
    kvasir_publisher_status at = {.struct_size = 1};
    EXPECT(kvasir_publisher_get_status(publisher, NULL), KVASIR_INVALID_ARGUMENT, "status is NULL");
    EXPECT(kvasir_publisher_get_status(publisher, &at), KVASIR_INVALID_ARGUMENT, "struct_size is 1");
    EXPECT(kvasir_publisher_wait_connected(publisher, 1), KVASIR_TIMEOUT, "no stream yet");
    EXPECT(kvasir_publisher_flush(publisher, 1), KVASIR_TIMEOUT, "2 batches are not acknowledged");
    EXPECT(kvasir_publisher_shutdown(publisher, 1), KVASIR_TIMEOUT, "are not acknowledged");
    EXPECT(kvasir_publisher_shutdown(publisher, 1), KVASIR_OK, "");
    EXPECT(kvasir_publish_all_cleared(publisher, &id), KVASIR_SHUT_DOWN, "shut down");
    EXPECT(kvasir_publisher_flush(publisher, 1000), KVASIR_SHUT_DOWN, "shut down");
    at.struct_size = sizeof at;
    EXPECT(kvasir_publisher_get_status(publisher, &at), KVASIR_OK, "");
    EXPECT(kvasir_publisher_free(publisher), KVASIR_OK, "");
    EXPECT(kvasir_publisher_free(publisher), KVASIR_BAD_HANDLE, "no publisher, or it was freed");
    EXPECT(kvasir_publish_all_cleared(publisher, &id), KVASIR_BAD_HANDLE, "");
    EXPECT(kvasir_publisher_shutdown(publisher, 1), KVASIR_BAD_HANDLE, "");
    EXPECT(kvasir_publisher_free(NULL), KVASIR_OK, "");
    EXPECT(kvasir_publisher_flush(NULL, 1), KVASIR_BAD_HANDLE, "");
    EXPECT(kvasir_publisher_get_status((kvasir_publisher *)&at, &at), KVASIR_BAD_HANDLE, "");
}

int main(void) {
    kvasir_publisher *publisher = NULL;
    kvasir_publisher_options at = valid();
    if (strcmp(kvasir_last_error(), "") != 0) {
        failures++;
    }
    options();
    EXPECT(kvasir_publisher_open(&at, &publisher), KVASIR_OK, "");
    events(publisher);
    ends(publisher);
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
