/* What the files of this library share. See ../README.md for what it is and is not. */
#ifndef NOCUDA_H
#define NOCUDA_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <cuda.h>
#include <cuda_runtime_api.h>
#include "counter.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_DEVICES 16
#define GRANULE ((size_t)2 << 20) /* cudaMalloc takes memory of the GPU in 2 MiB */
#define DRIVER_VERSION CUDA_VERSION

/* ---- report.c: what was called -------------------------------------------------------------------------------- */
/* What an observer can be told of. The Python side has the same numbers: library.py, Seen. */
typedef enum {
    SEEN_SYNCHRONISATION = 1, /* the host waits for the device; bytes: those that are copied with it */
    SEEN_COPY = 2,            /* bytes go from one side to the other; from, to: a device's number, -1 the host */
    SEEN_LAUNCH = 4,
    SEEN_UNKNOWN = 8, /* a function without a body here was called for the first time */
} Seen;
typedef void (*Observer)(int what, const char *name, unsigned long long bytes, int from, int to);

/* Begins every function that PyTorch can call. */
#define COUNT                                         \
    static Counter counter__ = {.name = __func__};    \
    nocuda_count(&counter__)
void nocuda_tell(Seen what, const char *name, unsigned long long bytes, int from, int to);
void nocuda_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
void nocuda_ready(void);

typedef struct Kernel {
    const void *handle; /* the host function's address, or a driver handle of ours */
    char *name;
    _Atomic unsigned long launches;
    struct Kernel *next;
} Kernel;
Kernel *nocuda_kernel(const void *handle, const char *name);
extern _Atomic unsigned long nocuda_launch_count, nocuda_replayed_launches;
extern _Atomic unsigned long nocuda_work; /* as the launches, and never set to zero */

/* ---- devices.c ------------------------------------------------------------------------------------------------- */
typedef struct Block {
    uintptr_t start;
    size_t size;
    struct Block *next;
} Block;
typedef struct {
    uintptr_t base; /* of its address space */
    Block *blocks;  /* in order of address */
    size_t used, peak;
    bool has_context;
} Device;
typedef struct {
    char name[256];
    int devices;
    size_t total_bytes, context_bytes, l2_bytes;
    int major, minor, multiprocessors;
    int threads_per_sm, blocks_per_sm;
    size_t shared_per_sm, shared_per_block_most;
    int clock_khz, memory_clock_khz, bus_bits;
} Gpu;
extern Gpu nocuda_gpu;
extern Device nocuda_devices[MAX_DEVICES];
extern __thread int nocuda_current;
void nocuda_setup_devices(void);
void nocuda_uuid(int device, unsigned char uuid[16]);

/* ---- memory.c -------------------------------------------------------------------------------------------------- */
void nocuda_reserve_addresses(void);
int nocuda_device_of(const void *pointer); /* -1: the host's */
cudaError_t nocuda_error(cudaError_t error);
size_t nocuda_granules(size_t bytes);
bool nocuda_block_at(const void *pointer, uintptr_t *start, size_t *size);
bool nocuda_is_host_memory(const void *pointer); /* pinned */
bool nocuda_may_know(size_t bytes); /* more than so much is never known */
bool nocuda_is_known(const void *pointer, size_t bytes); /* the host has sent it, and nothing has written there since */
void nocuda_know(const void *pointer, size_t bytes, bool known);

/* ---- streams.c ------------------------------------------------------------------------------------------------- */
typedef struct Capture Capture;
struct CUstream_st {
    int device, priority;
    unsigned flags;
    Capture *capture; /* NULL: what is queued here runs */
};
struct CUstream_st *nocuda_stream(cudaStream_t stream);
bool nocuda_is_captured(cudaStream_t stream, const char *name); /* and if so, adds a node to the graph */
cudaError_t nocuda_host_waits(const char *name, unsigned long long bytes); /* refused while a graph is captured */
cudaError_t nocuda_unsafe_in_capture(void);
uint64_t nocuda_now_ns(void);

/* ---- launches.c ------------------------------------------------------------------------------------------------ */
cudaError_t nocuda_launch(Kernel *kernel, cudaStream_t stream, dim3 grid, dim3 block, size_t shared, int driver_api);

/* ---- profiler.c ------------------------------------------------------------------------------------------------ */
void nocuda_profile_call(int runtime_callback);
void nocuda_profile_launch(int driver_api, const char *kernel, dim3 grid, dim3 block, unsigned device, cudaStream_t stream);
#endif
