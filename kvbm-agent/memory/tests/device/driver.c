/* A CUDA driver for tests: "device" memory is the heap, at addresses that are not the heap's, so that a pointer that is
   followed by mistake leads nowhere. One accelerator. Allocations above 1 GiB fail, as on a device that is full. */
#include <stdlib.h>
#include <string.h>

#define OFFSET 0x700000000000ULL
#define OUT_OF_MEMORY 2
#define NOT_CURRENT 201

static __thread int current;

static void *host(unsigned long long pointer) { return (void *)(pointer - OFFSET); }

int cuGetErrorString(int error, const char **text) {
    *text = error == OUT_OF_MEMORY ? "out of memory" : "invalid device context";
    return 0;
}
int cuInit(unsigned flags) { return flags != 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int number) { *device = number + 40; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(size_t)device; return device != 40; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device != 40; }
int cuCtxPushCurrent_v2(void *context) { current += context == (void *)40; return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = (void *)40; return --current != 0; }
int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes) {
    if (!current) return NOT_CURRENT;
    if (bytes > (1ULL << 30)) return OUT_OF_MEMORY;
    *pointer = (unsigned long long)malloc(bytes) + OFFSET;
    return 0;
}
int cuMemFree_v2(unsigned long long pointer) { free(host(pointer)); return !current; }
int cuMemsetD8_v2(unsigned long long pointer, unsigned char value, size_t bytes) {
    memset(host(pointer), value, bytes);
    return !current;
}
int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes) { memcpy(host(to), from, bytes); return !current; }
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes) { memcpy(to, host(from), bytes); return !current; }
int cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    *pointer = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return flags != 1 || !current;
}
int cuMemFreeHost(void *pointer) { free(pointer); return !current; }
