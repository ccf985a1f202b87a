/* CUPTI: torch.profiler gets a record for each call and each launch, with the host's times. */
#include "nocuda.h"
#include <cupti.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    bool on[CUPTI_ACTIVITY_KIND_COUNT];
    CUpti_BuffersCallbackRequestFunc request;
    CUpti_BuffersCallbackCompleteFunc complete;
    CUpti_TimestampCallbackFunc clock;
    uint8_t *buffer;
    size_t size, used;
    uint32_t correlation;
} profiler;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread struct { CUpti_ExternalCorrelationKind kind; uint64_t id; } external[256];
static __thread int externals;

/* Indices are what memory.c and streams.c pass to nocuda_profile_call. */
static const struct { uint32_t callback; const char *name; } runtime_calls[] = {
    {CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020, "cudaMalloc"},
    {CUPTI_RUNTIME_TRACE_CBID_cudaFree_v3020, "cudaFree"},
    {CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy_v3020, "cudaMemcpy"},
    {CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020, "cudaMemcpyAsync"},
    {CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020, "cudaMemsetAsync"},
    {CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000, "cudaGraphLaunch"},
    {CUPTI_RUNTIME_TRACE_CBID_cudaStreamSynchronize_v3020, "cudaStreamSynchronize"},
    {CUPTI_RUNTIME_TRACE_CBID_cudaDeviceSynchronize_v3020, "cudaDeviceSynchronize"},
    {CUPTI_RUNTIME_TRACE_CBID_cudaEventSynchronize_v3020, "cudaEventSynchronize"},
    {CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000, "cudaLaunchKernel"},
};
enum { LAUNCH_CALL = 9 };

static uint64_t now_ns(void) { return profiler.clock ? profiler.clock() : nocuda_now_ns(); }
static void give_buffer(void) {
    if (!profiler.buffer) return;
    uint8_t *full = profiler.buffer;
    profiler.buffer = NULL;
    profiler.complete(NULL, 0, full, profiler.size, profiler.used);
}
static size_t rounded(size_t bytes) { return (bytes + 7) & ~(size_t)7; }
static void *record(size_t bytes) {
    bytes = rounded(bytes);
    if (profiler.buffer && profiler.used + bytes > profiler.size) give_buffer();
    if (!profiler.buffer) {
        size_t most = 0;
        profiler.request(&profiler.buffer, &profiler.size, &most);
        profiler.used = 0;
        if (!profiler.buffer) return NULL;
    }
    void *made = profiler.buffer + profiler.used;
    profiler.used += bytes;
    return memset(made, 0, bytes);
}
static size_t size_of(const CUpti_Activity *one) {
    switch (one->kind) {
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: return rounded(sizeof(CUpti_ActivityAPI));
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return rounded(sizeof(CUpti_ActivityExternalCorrelation));
    default: return rounded(sizeof(CUpti_ActivityKernel9));
    }
}

static void tell(CUpti_ActivityKind kind, uint32_t callback, const char *kernel, dim3 grid, dim3 block, unsigned device, cudaStream_t stream) {
    if (!profiler.request || !(profiler.on[CUPTI_ACTIVITY_KIND_RUNTIME] || profiler.on[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL]))
        return;
    pthread_mutex_lock(&lock);
    uint32_t correlation = ++profiler.correlation;
    uint64_t now = now_ns();
    CUpti_ActivityExternalCorrelation *asked_by;
    if (profiler.on[CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION] && externals && (asked_by = record(sizeof *asked_by))) {
        asked_by->kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
        asked_by->externalKind = external[externals - 1].kind;
        asked_by->externalId = external[externals - 1].id;
        asked_by->correlationId = correlation;
    }
    CUpti_ActivityAPI *call;
    if (profiler.on[kind] && (call = record(sizeof *call))) {
        call->kind = kind;
        call->cbid = (CUpti_CallbackId)callback;
        call->start = now;
        call->end = now + 1000;
        call->processId = (uint32_t)getpid();
        call->threadId = (uint32_t)gettid();
        call->correlationId = correlation;
    }
    CUpti_ActivityKernel9 *launch;
    if (kernel && profiler.on[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL] && (launch = record(sizeof *launch))) {
        launch->kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
        launch->name = kernel;
        launch->start = now + 1500;
        launch->end = now + 2500;
        launch->deviceId = device;
        launch->contextId = 1;
        launch->streamId = (uintptr_t)stream <= 1 ? 7 : 8 + (uint32_t)((uintptr_t)stream >> 4); /* 7: the default, as CUPTI has it */
        launch->correlationId = correlation;
        launch->gridX = (int)grid.x;
        launch->gridY = (int)grid.y;
        launch->gridZ = (int)grid.z;
        launch->blockX = (int)block.x;
        launch->blockY = (int)block.y;
        launch->blockZ = (int)block.z;
    }
    pthread_mutex_unlock(&lock);
}
void nocuda_profile_call(int call) {
    tell(CUPTI_ACTIVITY_KIND_RUNTIME, runtime_calls[call].callback, NULL, (dim3){1, 1, 1}, (dim3){1, 1, 1}, 0, NULL);
}
void nocuda_profile_launch(int driver_api, const char *kernel, dim3 grid, dim3 block, unsigned device, cudaStream_t stream) {
    CUpti_ActivityKind kind = driver_api ? CUPTI_ACTIVITY_KIND_DRIVER : CUPTI_ACTIVITY_KIND_RUNTIME;
    tell(kind, driver_api ? (uint32_t)driver_api : runtime_calls[LAUNCH_CALL].callback, kernel, grid, block, device, stream);
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request, CUpti_BuffersCallbackCompleteFunc complete) {
    COUNT;
    profiler.request = request;
    profiler.complete = complete;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc clock) { COUNT; profiler.clock = clock; return CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) { COUNT; profiler.on[kind] = true; return CUPTI_SUCCESS; }
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) { COUNT; profiler.on[kind] = false; return CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnableRuntimeApi(uint32_t callback, uint8_t on) { COUNT; return CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnableDriverApi(uint32_t callback, uint8_t on) {
    COUNT;
    if (on) profiler.on[CUPTI_ACTIVITY_KIND_DRIVER] = true;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(uint32_t flags) {
    COUNT;
    pthread_mutex_lock(&lock);
    give_buffer();
    pthread_mutex_unlock(&lock);
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id) {
    COUNT;
    if (externals < 256) { external[externals].kind = kind; external[externals++].id = id; }
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t *id) {
    COUNT;
    if (externals) { externals--; if (id) *id = external[externals].id; }
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **next) {
    COUNT;
    uint8_t *at = *next ? (uint8_t *)*next + size_of(*next) : buffer;
    if (at >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *next = (CUpti_Activity *)at;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped) { COUNT; *dropped = 0; return CUPTI_SUCCESS; }
CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t callback, const char **name) {
    COUNT;
    *name = "?";
    if (domain == CUPTI_CB_DOMAIN_DRIVER_API)
        *name = callback == CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx ? "cuLaunchKernelEx" : "cuLaunchKernel";
    else
        for (size_t i = 0; i < sizeof runtime_calls / sizeof *runtime_calls; i++)
            if (runtime_calls[i].callback == callback) *name = runtime_calls[i].name;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetVersion(uint32_t *version) { COUNT; *version = CUPTI_API_VERSION; return CUPTI_SUCCESS; }
CUptiResult cuptiGetResultString(CUptiResult result, const char **text) { COUNT; *text = result ? "nocuda: a CUPTI error" : "CUPTI_SUCCESS"; return CUPTI_SUCCESS; }
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc callback, void *data) {
    COUNT;
    *(void **)subscriber = calloc(1, 64);
    return CUPTI_SUCCESS;
}
