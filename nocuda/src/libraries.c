/* cuBLAS, cuDNN, cuFFT, nvrtc: a call is one launch (generated); here is what has to answer more than "success". */
#include "nocuda.h"
#include <stdlib.h>
#include <string.h>

static int make(void **handle) { *handle = calloc(1, 4096); return 0; }
#define MAKES(name) int name(void **handle) { COUNT; return make(handle); }
#define FREES(name) int name(void *handle) { COUNT; free(handle); return 0; }
int nocuda_make(Counter *counter, void **made) { nocuda_count(counter); *made = calloc(1, 64); return 0; }

/* ---- on which stream a library's handle queues -------------------------------------------------------------------- */
#define MAX_HANDLES 1024
static struct { void *_Atomic handle; void *_Atomic stream; } handles[MAX_HANDLES];
int nocuda_set_stream(Counter *counter, void *handle, void *stream) {
    nocuda_count(counter);
    for (int i = 0; i < MAX_HANDLES; i++) {
        void *none = NULL;
        if (handles[i].handle == handle || atomic_compare_exchange_strong(&handles[i].handle, &none, handle)) {
            handles[i].stream = stream;
            break;
        }
    }
    return 0;
}
/* The next handle may have the same address, and queues on the default stream until it is told otherwise. */
int nocuda_free(Counter *counter, void *made) {
    nocuda_count(counter);
    for (int i = 0; i < MAX_HANDLES && handles[i].handle; i++)
        if (handles[i].handle == made) handles[i].stream = NULL;
    free(made);
    return 0;
}
static void *stream_of(void *handle) {
    for (int i = 0; i < MAX_HANDLES && handles[i].handle; i++)
        if (handles[i].handle == handle) return handles[i].stream;
    return NULL;
}
static int launch(Counter *counter, void *stream) {
    nocuda_count(counter);
    return (int)nocuda_launch(nocuda_kernel(counter, counter->name), stream, (dim3){1, 1, 1}, (dim3){1, 1, 1}, 0, 0);
}
int nocuda_library_launch(Counter *counter, void *handle) { return launch(counter, stream_of(handle)); }

/* ---- cuBLAS -------------------------------------------------------------------------------------------------------- */
typedef struct { int pointer_mode, math_mode; } Blas;
MAKES(cublasCreate_v2)
FREES(cublasDestroy_v2)
int cublasGetPointerMode_v2(Blas *handle, int *mode) { COUNT; *mode = handle->pointer_mode; return 0; }
int cublasSetPointerMode_v2(Blas *handle, int mode) { COUNT; handle->pointer_mode = mode; return 0; }
int cublasGetMathMode(Blas *handle, int *mode) { COUNT; *mode = handle->math_mode; return 0; }
int cublasSetMathMode(Blas *handle, int mode) { COUNT; handle->math_mode = mode; return 0; }
int cublasSetWorkspace_v2(Blas *handle, void *workspace, size_t bytes) { COUNT; nocuda_trace("cublasSetWorkspace %zu", bytes); return 0; }
size_t cublasLtGetVersion(void) { COUNT; return 130100; }
int cublasLtMatmulDescCreate(void **made, int compute, int scale) { COUNT; return make(made); }
int cublasLtMatrixLayoutCreate(void **made, int type, uint64_t rows, uint64_t columns, int64_t stride) { COUNT; return make(made); }
MAKES(cublasLtMatmulPreferenceCreate)
FREES(cublasLtMatmulDescDestroy)
FREES(cublasLtMatrixLayoutDestroy)
FREES(cublasLtMatmulPreferenceDestroy)
typedef struct { uint64_t algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; } Heuristic;
/* One result, without a workspace of its own: PyTorch raises where there is none. */
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference, int asked,
                                   Heuristic *result, int *found) {
    COUNT;
    memset(result, 0, sizeof *result);
    result->waves = 1;
    *found = 1;
    return 0;
}
int cublasLtMatmul(void *handle, void *operation, void *alpha, void *a, void *a_layout, void *b, void *b_layout, void *beta,
                   void *c, void *c_layout, void *d, void *d_layout, void *algorithm, void *workspace, size_t bytes, void *stream) {
    static Counter counter = {.name = __func__};
    return launch(&counter, stream);
}

/* ---- cuDNN --------------------------------------------------------------------------------------------------------- */
size_t cudnnGetVersion(void) { COUNT; return 92000; }
size_t cudnnGetCudartVersion(void) { COUNT; return CUDART_VERSION; }
int cudnnGetProperty(int which, int *value) { COUNT; *value = which == 0 ? 9 : which == 1 ? 20 : 0; return 0; }
const char *cudnnGetErrorString(int error) { COUNT; return error ? "nocuda: a cuDNN error" : "CUDNN_STATUS_SUCCESS"; }
void cudnnGetLastErrorString(char *text, size_t size) { COUNT; if (size) *text = 0; }
MAKES(cudnnCreate)
MAKES(cudnnCreateActivationDescriptor)
MAKES(cudnnCreateCTCLossDescriptor)
MAKES(cudnnCreateConvolutionDescriptor)
MAKES(cudnnCreateDropoutDescriptor)
MAKES(cudnnCreateFilterDescriptor)
MAKES(cudnnCreatePoolingDescriptor)
MAKES(cudnnCreateRNNDataDescriptor)
MAKES(cudnnCreateRNNDescriptor)
MAKES(cudnnCreateSpatialTransformerDescriptor)
MAKES(cudnnCreateTensorDescriptor)
int cudnnGetStream(void *handle, void **stream) { COUNT; *stream = stream_of(handle); return 0; }
/* The backend API, as cudnn-frontend calls it: one engine, without a workspace. What the real one takes is not known. */
enum { ENGINE_RESULTS = 202, CONFIGURATION_KNOBS = 302, PLAN_WORKSPACE = 402, KNOB_COUNT = 1303, BEHAVIOUR_NOTES = 1305 };
enum { TYPE_DESCRIPTOR = 15, TYPE_NUMERICAL_NOTE = 16, TYPE_BEHAVIOUR_NOTE = 23 };
typedef struct { int type; char rest[252]; } Descriptor;
int cudnnBackendCreateDescriptor(int type, void **made) {
    COUNT;
    Descriptor *one = calloc(1, sizeof *one);
    one->type = type;
    *made = one;
    return 0;
}
FREES(cudnnBackendDestroyDescriptor)
int cudnnBackendSetAttribute(void *descriptor, int name, int type, int64_t count, const void *values) { COUNT; return 0; }
int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t asked, int64_t *count, void *value) {
    COUNT;
    static const char sizes[] = {8, 4, 1, 8, 4, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4, 8}; /* by type, up to a descriptor */
    int64_t given = 0;
    if (name == ENGINE_RESULTS) given = 1;
    else if (name == CONFIGURATION_KNOBS || name == KNOB_COUNT || name == BEHAVIOUR_NOTES) given = 0;
    else if (type == TYPE_DESCRIPTOR) given = asked > 0; /* one that the caller made */
    else if (type == TYPE_BEHAVIOUR_NOTE && asked > 0) { given = 1; if (value) *(int32_t *)value = 0; }
    else if (name == PLAN_WORKSPACE) { given = 1; if (value) *(int64_t *)value = 0; }
    else if (value && asked == 1 && type < TYPE_NUMERICAL_NOTE) { memset(value, 0, (size_t)sizes[type]); given = 1; }
    if (count) *count = given;
    return 0;
}
int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *h, int m, int o, void *x, void *z, void *y, void *s, void *a, size_t *bytes) { COUNT; *bytes = 0; return 0; }
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *h, int m, int o, void *x, void *y, void *dy, void *dz, void *dx, void *s, void *a, size_t *bytes) { COUNT; *bytes = 0; return 0; }
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *h, int m, int o, void *a, void *x, size_t *bytes) { COUNT; *bytes = 0; return 0; }

/* Where a recurrent network's parameters are: PyTorch makes its parameters of them. First the matrices of all layers, each
   layer's for the input and then for the hidden state, gate by gate; then the biases. A bidirectional layer counts as two. */
typedef struct { int type, count, sizes[8], strides[8]; } TensorDescriptor;
typedef struct { int gates, directions, type, input, hidden, output, layers; bool biases, projects; } Rnn;
enum { DATA_DOUBLE = 1, DATA_HALF = 2, DATA_BFLOAT16 = 9, DOUBLE_BIAS = 2, BIDIRECTIONAL = 1 };
int cudnnSetTensorNdDescriptor(TensorDescriptor *d, int type, int count, const int *sizes, const int *strides) {
    COUNT;
    *d = (TensorDescriptor){.type = type, .count = count < 8 ? count : 8};
    memcpy(d->sizes, sizes, (size_t)d->count * sizeof *sizes);
    memcpy(d->strides, strides, (size_t)d->count * sizeof *strides);
    return 0;
}
int cudnnGetTensorNdDescriptor(const TensorDescriptor *d, int asked, int *type, int *count, int *sizes, int *strides) {
    COUNT;
    int given = d->count < asked ? d->count : asked;
    *type = d->type;
    *count = d->count;
    memcpy(sizes, d->sizes, (size_t)given * sizeof *sizes);
    memcpy(strides, d->strides, (size_t)given * sizeof *strides);
    return 0;
}
FREES(cudnnDestroyTensorDescriptor)
int cudnnSetRNNDescriptor_v8(Rnn *rnn, int algorithm, int cell, int bias, int direction, int input_mode, int type, int precision,
                             int math, int input, int hidden, int projected, int layers, void *dropout, unsigned flags) {
    COUNT;
    static const int gates[] = {1, 1, 4, 3}; /* ReLU, tanh, LSTM, GRU */
    bool projects = projected > 0 && projected < hidden;
    *rnn = (Rnn){gates[cell & 3], direction == BIDIRECTIONAL ? 2 : 1, type, input, hidden, projects ? projected : hidden,
                 layers, bias == DOUBLE_BIAS, projects};
    return 0;
}
FREES(cudnnDestroyRNNDescriptor)
static size_t element_of(const Rnn *rnn) {
    return rnn->type == DATA_DOUBLE ? 8 : rnn->type == DATA_HALF || rnn->type == DATA_BFLOAT16 ? 2 : 4;
}
static size_t columns_of(const Rnn *rnn, int layer, int matrix) {
    if (matrix == 2 * rnn->gates) return (size_t)rnn->hidden; /* the projection's */
    if (matrix >= rnn->gates) return (size_t)rnn->output;
    return (size_t)(layer < rnn->directions ? rnn->input : rnn->output * rnn->directions);
}
static size_t rows_of(const Rnn *rnn, int matrix) { return (size_t)(matrix == 2 * rnn->gates ? rnn->output : rnn->hidden); }
/* How many numbers come before this layer's matrix; before layer `layers`: all. */
static size_t matrices_before(const Rnn *rnn, int layer, int matrix) {
    size_t numbers = 0;
    for (int l = 0; l <= layer && l < rnn->layers * rnn->directions; l++)
        for (int m = 0; m < 2 * rnn->gates + rnn->projects && (l < layer || m < matrix); m++)
            numbers += rows_of(rnn, m) * columns_of(rnn, l, m);
    return numbers;
}
int cudnnGetRNNWeightSpaceSize(void *handle, const Rnn *rnn, size_t *bytes) {
    COUNT;
    size_t layers = (size_t)(rnn->layers * rnn->directions), biases = rnn->biases ? 2u * (size_t)(rnn->gates * rnn->hidden) : 0;
    *bytes = element_of(rnn) * (matrices_before(rnn, (int)layers, 0) + layers * biases);
    return 0;
}
int cudnnGetRNNWeightParams(void *handle, const Rnn *rnn, int layer, size_t bytes, char *start, int matrix, TensorDescriptor *m,
                            char **matrix_at, TensorDescriptor *b, char **bias_at) {
    COUNT; /* the caller asks for the matrix or for the bias */
    int layers = rnn->layers * rnn->directions, rows = (int)rows_of(rnn, matrix), columns = (int)columns_of(rnn, layer, matrix);
    if (m) *m = (TensorDescriptor){rnn->type, 3, {1, rows, columns}, {rows * columns, columns, 1}};
    if (matrix_at) *matrix_at = start + element_of(rnn) * matrices_before(rnn, layer, matrix);
    bool has_bias = rnn->biases && matrix < 2 * rnn->gates;
    if (b) *b = (TensorDescriptor){rnn->type, has_bias ? 3 : 0, {1, rows, 1}, {rows, 1, 1}};
    size_t before = (size_t)((layer * 2 * rnn->gates + matrix) * rnn->hidden);
    if (bias_at) *bias_at = has_bias ? start + element_of(rnn) * (matrices_before(rnn, layers, 0) + before) : NULL;
    return 0;
}

/* ---- cuFFT, nvrtc ----------------------------------------------------------------------------------------------------- */
int cufftCreate(int *plan) { COUNT; *plan = 1; return 0; }
int cufftXtMakePlanMany(int plan, int rank, void *n, void *in, long long in_stride, long long in_distance, int in_type, void *out,
                        long long out_stride, long long out_distance, int out_type, long long batch, size_t *work, int type) {
    COUNT;
    if (work) *work = 0;
    return 0;
}
int nvrtcVersion(int *major, int *minor) { COUNT; *major = CUDART_VERSION / 1000; *minor = CUDART_VERSION % 1000 / 10; return 0; }
int nvrtcCreateProgram(void **program, const char *source, const char *name, int count, void *headers, void *names) { COUNT; return make(program); }
int nvrtcGetPTXSize(void *program, size_t *size) { COUNT; *size = 1; return 0; }
int nvrtcGetCUBINSize(void *program, size_t *size) { COUNT; *size = 1; return 0; }
int nvrtcGetProgramLogSize(void *program, size_t *size) { COUNT; *size = 1; return 0; }
int nvrtcGetProgramLog(void *program, char *text) { COUNT; *text = 0; return 0; }
int nvrtcGetLoweredName(void *program, const char *expression, const char **name) { COUNT; *name = expression; return 0; }
const char *nvrtcGetErrorString(int error) { COUNT; return error ? "nocuda: an nvrtc error" : "NVRTC_SUCCESS"; }
