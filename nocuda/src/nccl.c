/* NCCL: this process is one rank of a communicator whose other ranks are not there. A collective is one launch, and answers
   as if every rank had sent what this one sent; what no host has sent reads as zero, as everywhere. */
#include "nocuda.h"
#include <stdlib.h>
#include <string.h>

typedef struct Communicator { int rank, ranks, device; } Communicator;
typedef struct { char bytes[128]; } Id;
enum Type { INT8, UINT8, INT32, UINT32, INT64, UINT64, HALF, FLOAT, DOUBLE, BFLOAT16, TYPES = 12 };
enum Reduction { SUM, PRODUCT, MAX, MIN, AVERAGE };
static const size_t SIZES[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

int ncclGetVersion(int *version) { COUNT; *version = 22907; return 0; }
const char *ncclGetErrorString(int error) { COUNT; return error ? "nocuda: a NCCL error" : "no error"; }
const char *ncclGetLastError(void *communicator) { COUNT; return ""; }
int ncclGetUniqueId(Id *id) { COUNT; memset(id, 1, sizeof *id); return 0; }

static int join(Communicator **made, int ranks, int rank) {
    *made = malloc(sizeof **made);
    **made = (Communicator){rank, ranks, nocuda_current};
    return 0;
}
int ncclCommInitRank(Communicator **made, int ranks, Id id, int rank) { COUNT; return join(made, ranks, rank); }
int ncclCommInitRankConfig(Communicator **made, int ranks, Id id, int rank, void *config) { COUNT; return join(made, ranks, rank); }
int ncclCommInitRankScalable(Communicator **made, int ranks, int rank, int ids, Id *id, void *config) { COUNT; return join(made, ranks, rank); }
/* How many ranks have the same colour is known to them alone: such a communicator answers with what this rank sent. */
int ncclCommSplit(Communicator *from, int color, int key, Communicator **made, void *config) { COUNT; return join(made, 1, 0); }
int ncclCommShrink(Communicator *from, int *left_out, int count, Communicator **made, void *config, int flags) {
    COUNT;
    return join(made, from->ranks - count, from->rank);
}
int ncclCommFinalize(Communicator *one) { COUNT; return 0; }
int ncclCommDestroy(Communicator *one) { COUNT; free(one); return 0; }
int ncclCommAbort(Communicator *one) { COUNT; free(one); return 0; }
int ncclCommGetAsyncError(Communicator *one, int *error) { COUNT; *error = 0; return 0; }
int ncclCommCount(Communicator *one, int *ranks) { COUNT; *ranks = one->ranks; return 0; }
int ncclCommUserRank(Communicator *one, int *rank) { COUNT; *rank = one->rank; return 0; }
int ncclCommCuDevice(Communicator *one, int *device) { COUNT; *device = one->device; return 0; }
int ncclCommRegister(Communicator *one, void *buffer, size_t size, void **handle) { COUNT; *handle = buffer; return 0; }
int ncclCommDeregister(Communicator *one, void *handle) { COUNT; return 0; }
int ncclMemAlloc(void **pointer, size_t size) { COUNT; return cudaMalloc(pointer, size) ? 1 : 0; }
int ncclMemFree(void *pointer) { COUNT; return cudaFree(pointer) ? 1 : 0; }
int ncclGroupStart(void) { COUNT; return 0; }
int ncclGroupEnd(void) { COUNT; return 0; }
int ncclRedOpCreatePreMulSum(int *made, void *scale, int type, int residence, Communicator *one) { COUNT; *made = AVERAGE + 1; return 0; }
int ncclRedOpDestroy(int made, Communicator *one) { COUNT; return 0; }

/* ---- collectives ---------------------------------------------------------------------------------------------------- */
#define TIMES(type) do { for (size_t i = 0; i < count; i++) { type *x = (type *)at + i, one = *x; \
    for (int rank = 1; rank < ranks; rank++) *x = (type)(reduction == SUM ? *x + one : *x * one); } return true; } while (0)
/* As many equal numbers, reduced; false: it is not known what that is. */
static bool reduce(void *at, size_t count, int type, int reduction, int ranks) {
    if (reduction == MAX || reduction == MIN || reduction == AVERAGE || ranks == 1) return true;
    if (reduction > AVERAGE) return false;
    switch (type) {
    case INT8: TIMES(int8_t);
    case UINT8: TIMES(uint8_t);
    case INT32: TIMES(int32_t);
    case UINT32: TIMES(uint32_t);
    case INT64: TIMES(int64_t);
    case UINT64: TIMES(uint64_t);
    case FLOAT: TIMES(float);
    case DOUBLE: TIMES(double);
    }
    return false;
}

/* Give `to` `copies` of what the host is known to have sent to `from`; if nothing is known of that, nothing is of `to`. */
static void answer(void *to, const void *from, size_t count, int type, int copies, int reduction, int ranks) {
    size_t bytes = count * SIZES[type], all = bytes * (size_t)copies;
    bool known = nocuda_is_known(from, bytes) && nocuda_may_know(all);
    if (known) {
        memmove(to, from, bytes);
        known = reduce(to, count, type, reduction, ranks);
        for (int copy = 1; copy < copies; copy++) memcpy((char *)to + bytes * (size_t)copy, to, bytes);
    }
    nocuda_know(to, all, known);
}
static int launch(Counter *counter, size_t count, int type, const Communicator *one, cudaStream_t stream) {
    if (!one || type < 0 || type >= TYPES) return 4; /* ncclInvalidArgument */
    nocuda_trace("%s %zu rank %d of %d stream %p", counter->name, count * SIZES[type], one->rank, one->ranks, (void *)stream);
    unsigned long work = nocuda_work;
    int refused = nocuda_launch(nocuda_kernel(counter, counter->name), stream, (dim3){1, 1, 1}, (dim3){1, 1, 1}, 0, 0) ? 1 : 0;
    nocuda_work = work; /* what it writes is told by `answer`, and nothing else is written */
    return refused;
}
#define COLLECTIVE(name, answers, ...) \
    int name(__VA_ARGS__, Communicator *one, cudaStream_t stream) { \
        COUNT; \
        int refused = launch(&counter__, count, type, one, stream); \
        if (!refused && !nocuda_stream(stream)->capture) { answers; } \
        return refused; \
    }
COLLECTIVE(ncclAllReduce, answer(to, from, count, type, 1, op, one->ranks), const void *from, void *to, size_t count, int type, int op)
COLLECTIVE(ncclReduce, if (root == one->rank) answer(to, from, count, type, 1, op, one->ranks),
           const void *from, void *to, size_t count, int type, int op, int root)
COLLECTIVE(ncclBroadcast, answer(to, root == one->rank ? from : to, count, type, 1, MAX, 1),
           const void *from, void *to, size_t count, int type, int root)
COLLECTIVE(ncclBcast, , void *at, size_t count, int type, int root)
COLLECTIVE(ncclAllGather, answer(to, from, count, type, one->ranks, MAX, 1), const void *from, void *to, size_t count, int type)
COLLECTIVE(ncclReduceScatter,
           answer(to, (const char *)from + count * SIZES[type] * (size_t)one->rank, count, type, 1, op, one->ranks),
           const void *from, void *to, size_t count, int type, int op)
COLLECTIVE(ncclAlltoAll,
           answer(to, (const char *)from + count * SIZES[type] * (size_t)one->rank, count, type, one->ranks, MAX, 1),
           const void *from, void *to, size_t count, int type)
COLLECTIVE(ncclSend, , const void *from, size_t count, int type, int peer)
COLLECTIVE(ncclRecv, nocuda_know(to, count * SIZES[type], false), void *to, size_t count, int type, int peer)
