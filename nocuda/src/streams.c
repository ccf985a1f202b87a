/* Streams, events, and the capture of graphs. Work is done when it is queued; events carry the host's time. */
#include "nocuda.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct Capture {
    unsigned long nodes;
    unsigned long long id;
    enum cudaStreamCaptureMode mode;
    pthread_t thread; /* that began it */
    bool invalid;     /* something was called that a graph cannot hold */
    bool ended;       /* it stays: events may still name it */
};
struct CUevent_st {
    int device;
    unsigned flags;
    uint64_t at_ns;
    bool recorded;
    Capture *capture; /* whose stream it was recorded on */
};
struct CUgraph_st { unsigned long nodes; };
struct CUgraphExec_st { unsigned long nodes; };

#define MAX_CAPTURES 64
static struct CUstream_st default_streams[MAX_DEVICES];
static Capture *captures[MAX_CAPTURES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int capturing;
static _Atomic unsigned long long capture_ids = 1;
static __thread enum cudaStreamCaptureMode thread_mode; /* global, as CUDA begins */

uint64_t nocuda_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}
struct CUstream_st *nocuda_stream(cudaStream_t stream) {
    return (uintptr_t)stream <= 2 ? &default_streams[nocuda_current] : stream; /* 0, legacy, per thread */
}

/* ---- capture ------------------------------------------------------------------------------------------------------ */
bool nocuda_is_captured(cudaStream_t stream, const char *name) {
    Capture *capture = capturing ? nocuda_stream(stream)->capture : NULL;
    if (capture) atomic_fetch_add((_Atomic unsigned long *)&capture->nodes, 1);
    return capture != NULL;
}

/* "Stream capture": what a thread may call depends on its mode, and on the captures that it or others have begun. */
static Capture *forbidding(void) {
    Capture *found = NULL;
    if (!capturing || thread_mode == cudaStreamCaptureModeRelaxed) return NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_CAPTURES && !found; i++) {
        Capture *one = captures[i];
        if (!one || one->mode == cudaStreamCaptureModeRelaxed) continue;
        bool mine = pthread_equal(one->thread, pthread_self());
        bool of_others = thread_mode == cudaStreamCaptureModeGlobal && one->mode == cudaStreamCaptureModeGlobal;
        if (mine || of_others) found = one;
    }
    if (found) found->invalid = true;
    pthread_mutex_unlock(&lock);
    return found;
}
cudaError_t nocuda_unsafe_in_capture(void) {
    return forbidding() ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}
static __thread bool copied_last; /* PyTorch waits after a copy that has made the host wait already: that is one wait */
cudaError_t nocuda_host_waits(const char *name, unsigned long long bytes) {
    cudaError_t refused = nocuda_unsafe_in_capture();
    bool again = copied_last && !bytes;
    copied_last = bytes > 0;
    if (!refused && !again) nocuda_tell(SEEN_SYNCHRONISATION, name, bytes, -1, -1);
    return refused;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    COUNT;
    if ((uintptr_t)stream <= 1) return nocuda_error(cudaErrorStreamCaptureUnsupported); /* the default stream's */
    struct CUstream_st *on = nocuda_stream(stream);
    if (on->capture) return nocuda_error(cudaErrorIllegalState);
    Capture *capture = calloc(1, sizeof *capture);
    *capture = (Capture){.id = capture_ids++, .mode = mode, .thread = pthread_self()};
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < MAX_CAPTURES && captures[i]) i++;
    if (i < MAX_CAPTURES) captures[i] = capture;
    pthread_mutex_unlock(&lock);
    if (i == MAX_CAPTURES) { free(capture); return nocuda_error(cudaErrorIllegalState); }
    on->capture = capture;
    capturing++;
    return cudaSuccess;
}
static struct CUstream_st *streams_made[4096];
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    COUNT;
    struct CUstream_st *on = nocuda_stream(stream);
    Capture *capture = on->capture;
    *graph = NULL;
    if (!capture) return nocuda_error(cudaErrorIllegalState);
    on->capture = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_CAPTURES; i++)
        if (captures[i] == capture) captures[i] = NULL;
    for (size_t i = 0; i < sizeof streams_made / sizeof *streams_made; i++) /* those that had joined */
        if (streams_made[i] && streams_made[i]->capture == capture) streams_made[i]->capture = NULL;
    pthread_mutex_unlock(&lock);
    capturing--;
    capture->ended = true;
    if (capture->invalid) return nocuda_error(cudaErrorStreamCaptureInvalidated);
    *graph = calloc(1, sizeof **graph);
    (*graph)->nodes = capture->nodes;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    COUNT;
    Capture *capture = nocuda_stream(stream)->capture;
    *status = !capture            ? cudaStreamCaptureStatusNone
              : capture->invalid ? cudaStreamCaptureStatusInvalidated
                                 : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *count) {
#else
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                        cudaGraph_t *graph, const cudaGraphNode_t **dependencies, size_t *count) {
    const cudaGraphEdgeData **edges = NULL;
#endif
    COUNT;
    Capture *capture = nocuda_stream(stream)->capture;
    cudaStreamIsCapturing(stream, status);
    if (id) *id = capture ? capture->id : 0;
    if (graph) *graph = NULL;
    if (dependencies) *dependencies = NULL;
    if (edges) *edges = NULL;
    if (count) *count = 0;
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    COUNT;
    enum cudaStreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
    COUNT;
    *executable = calloc(1, sizeof **executable);
    (*executable)->nodes = graph->nodes;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
    COUNT;
    return cudaGraphInstantiateWithFlags(executable, graph, flags);
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    COUNT;
    *count = graph->nodes;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    COUNT;
    nocuda_profile_call(5 /* cudaGraphLaunch */);
    nocuda_launch_count += executable->nodes;
    nocuda_replayed_launches += executable->nodes;
    nocuda_work++;
    nocuda_trace("cudaGraphLaunch nodes %lu stream %p", executable->nodes, (void *)stream);
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { COUNT; free(graph); return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { COUNT; free(executable); return cudaSuccess; }

/* ---- streams ------------------------------------------------------------------------------------------------------ */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    COUNT;
    struct CUstream_st *made = calloc(1, sizeof *made);
    *made = (struct CUstream_st){.device = nocuda_current, .priority = priority, .flags = flags};
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof streams_made / sizeof *streams_made; i++)
        if (!streams_made[i]) { streams_made[i] = made; break; }
    pthread_mutex_unlock(&lock);
    *stream = made;
    nocuda_trace("cudaStreamCreate %p priority %d", (void *)made, priority);
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { COUNT; return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    COUNT;
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    COUNT;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof streams_made / sizeof *streams_made; i++)
        if (streams_made[i] == stream) streams_made[i] = NULL;
    pthread_mutex_unlock(&lock);
    free(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    COUNT;
    *priority = nocuda_stream(stream)->priority;
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) { COUNT; return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    COUNT;
    nocuda_profile_call(6 /* cudaStreamSynchronize */);
    nocuda_trace("cudaStreamSynchronize %p", (void *)stream);
    return nocuda_error(nocuda_host_waits(__func__, 0));
}
cudaError_t cudaDeviceSynchronize(void) {
    COUNT;
    nocuda_profile_call(7 /* cudaDeviceSynchronize */);
    nocuda_trace("cudaDeviceSynchronize");
    return nocuda_error(nocuda_host_waits(__func__, 0));
}
CUresult cuStreamSynchronize(CUstream stream) { COUNT; return (CUresult)nocuda_host_waits(__func__, 0); }
CUresult cuCtxSynchronize(void) { COUNT; return (CUresult)nocuda_host_waits(__func__, 0); }
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data, unsigned flags) {
    COUNT;
    function(stream, cudaSuccess, data);
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    COUNT;
    if (!nocuda_is_captured(stream, __func__)) function(data);
    return cudaSuccess;
}

/* ---- events ------------------------------------------------------------------------------------------------------- */
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    COUNT;
    *event = calloc(1, sizeof **event);
    (*event)->flags = flags;
    (*event)->device = nocuda_current;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { COUNT; return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { COUNT; free(event); return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    COUNT;
    event->capture = nocuda_stream(stream)->capture;
    event->at_ns = nocuda_now_ns();
    event->recorded = true;
    nocuda_trace("cudaEventRecord event %p stream %p", (void *)event, (void *)stream);
    return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    COUNT;
    return cudaEventRecord(event, stream);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    COUNT;
    if (event->capture && !event->capture->ended) nocuda_stream(stream)->capture = event->capture; /* joins it */
    nocuda_trace("cudaStreamWaitEvent stream %p event %p", (void *)stream, (void *)event);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    COUNT;
    if (event->capture && !event->capture->ended) return nocuda_error(cudaErrorStreamCaptureUnsupported);
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    COUNT;
    nocuda_profile_call(8 /* cudaEventSynchronize */);
    nocuda_trace("cudaEventSynchronize %p", (void *)event);
    return nocuda_error(nocuda_host_waits(__func__, 0));
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    COUNT;
    if (!start || !end || !start->recorded || !end->recorded || ((start->flags | end->flags) & cudaEventDisableTiming))
        return nocuda_error(cudaErrorInvalidResourceHandle);
    *ms = (float)((double)((int64_t)end->at_ns - (int64_t)start->at_ns) / 1e6);
    return cudaSuccess;
}
