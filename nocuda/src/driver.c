/* The driver's contexts and entry points, and the words of errors. */
#include "nocuda.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int no_such_function(void) { return CUDA_ERROR_NOT_SUPPORTED; }

static void *find(void *library, const char *symbol) {
    static const char *const versions[] = {"", "_v2", "_v3", "_v4"};
    char name[256];
    void *found = NULL;
    for (int i = 0; i < 4 && !found; i++) {
        snprintf(name, sizeof name, "%s%s", symbol, versions[i]);
        found = dlsym(library, name);
    }
    return found;
}
/* cuda.h has the plain name mean the newest version of a function, so ours are looked for by every name. */
static void *entry_point(const char *symbol) {
    static void *self;
    Dl_info info;
    if (!self && dladdr((void *)no_such_function, &info)) self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    void *found = self ? find(self, symbol) : NULL;
    if (!found) nocuda_tell(SEEN_UNKNOWN, symbol, 0, -1, -1);
    return found ? found : (void *)no_such_function;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *status) {
    COUNT;
    *function = entry_point(symbol);
    if (status) *status = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
    COUNT;
    return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, status);
}
CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
    COUNT;
    *function = entry_point(symbol);
    if (status) *status = CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
}
/* A CUDA runtime that is linked into an extension asks for tables of functions that nobody documents. */
CUresult cuGetExportTable(const void **table, const CUuuid *id) {
    COUNT;
    static _Atomic int told;
    if (told++) return CUDA_ERROR_NOT_SUPPORTED;
    nocuda_tell(SEEN_UNKNOWN, __func__, 0, -1, -1);
    fprintf(stderr, "nocuda: a library with a CUDA runtime of its own cannot run here: link it with the shared one "
                    "(nvcc --cudart=shared; torch.utils.cpp_extension does)\n");
    return CUDA_ERROR_NOT_SUPPORTED;
}

struct CUctx_st { int device; };
static struct CUctx_st contexts[MAX_DEVICES];
static CUcontext context(int device) {
    contexts[device].device = device;
    nocuda_devices[device].has_context = true;
    return &contexts[device];
}
CUresult cuCtxGetCurrent(CUcontext *current) {
    COUNT;
    *current = nocuda_devices[nocuda_current].has_context ? context(nocuda_current) : NULL;
    return CUDA_SUCCESS;
}
static CUresult make_current(CUcontext wanted) {
    if (wanted) nocuda_current = wanted->device;
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext wanted) { COUNT; return make_current(wanted); }
CUresult cuCtxPushCurrent(CUcontext wanted) { COUNT; return make_current(wanted); }
CUresult cuCtxPopCurrent(CUcontext *popped) { COUNT; *popped = context(nocuda_current); return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { COUNT; *device = nocuda_current; return CUDA_SUCCESS; }
enum { LIMITS = 16, PERSISTING_L2 = 6 };
static size_t limits[LIMITS] = {8388608, 8388608, 8388608, 8388608, 8388608, 8388608, 0};
CUresult cuCtxGetLimit(size_t *value, CUlimit which) {
    COUNT;
    if (which >= LIMITS) return CUDA_ERROR_INVALID_VALUE;
    *value = limits[which];
    return CUDA_SUCCESS;
}
CUresult cuCtxSetLimit(CUlimit which, size_t value) {
    COUNT;
    if (which >= LIMITS) return CUDA_ERROR_INVALID_VALUE;
    limits[which] = value;
    return CUDA_SUCCESS;
}
CUresult cuCtxResetPersistingL2Cache(void) { COUNT; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *retained, CUdevice device) { COUNT; *retained = context(device); return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    COUNT;
    if (flags) *flags = 0;
    *active = nocuda_devices[device].has_context;
    return CUDA_SUCCESS;
}

/* Runtime and driver have the same numbers for the errors that can happen here. */
static const struct { int error; const char *name, *text; } errors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {52, "cudaErrorMissingConfiguration", "__global__ function call is not configured"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {401, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {500, "cudaErrorSymbolNotFound", "named symbol not found"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
};
static const char *of_error(int error, bool name) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].error == error) return name ? errors[i].name : errors[i].text;
    return name ? "cudaErrorUnknown" : "unknown error";
}
const char *cudaGetErrorString(cudaError_t error) { COUNT; return of_error((int)error, false); }
const char *cudaGetErrorName(cudaError_t error) { COUNT; return of_error((int)error, true); }
CUresult cuGetErrorString(CUresult error, const char **text) { COUNT; *text = of_error((int)error, false); return CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult error, const char **text) { COUNT; *text = of_error((int)error, true); return CUDA_SUCCESS; }
