/* Kernels: registered, launched by name, never run. What a real launch refuses is refused. */
#include "nocuda.h"
#include <cupti.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cudaError_t nocuda_launch(Kernel *kernel, cudaStream_t stream, dim3 grid, dim3 block, size_t shared, int driver_api) {
    nocuda_trace("launch %s grid %u,%u,%u block %u,%u,%u shared %zu stream %p", kernel->name, grid.x, grid.y, grid.z,
                 block.x, block.y, block.z, shared, (void *)stream);
    bool valid = grid.x && grid.y && grid.z && block.x && block.y && block.z && grid.x <= 2147483647u &&
                 grid.y <= 65535 && grid.z <= 65535 && block.x <= 1024 && block.y <= 1024 && block.z <= 64 &&
                 (uint64_t)block.x * block.y * block.z <= 1024;
    if (!valid) return nocuda_error(cudaErrorInvalidConfiguration);
    if (shared > nocuda_gpu.shared_per_block_most) return nocuda_error(cudaErrorInvalidValue);
    nocuda_profile_launch(driver_api, kernel->name, grid, block, (unsigned)nocuda_current, stream);
    if (nocuda_is_captured(stream, kernel->name)) return cudaSuccess;
    atomic_fetch_add_explicit(&kernel->launches, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&nocuda_launch_count, 1, memory_order_relaxed);
    nocuda_work++;
    nocuda_tell(SEEN_LAUNCH, kernel->name, 0, -1, nocuda_current);
    return cudaSuccess;
}

/* ---- the runtime's --------------------------------------------------------------------------------------------------- */
void **__cudaRegisterFatBinary(void *binary) { static void *handle[8]; return handle; }
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
char __cudaInitModule(void **handle) { return 1; }
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, uint3 *thread,
                            uint3 *block, dim3 *block_size, dim3 *grid_size, int *warp) {
    nocuda_kernel(host, name);
}
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size, int constant,
                       int global) {}

typedef struct { dim3 grid, block; size_t shared; cudaStream_t stream; } Configuration;
static __thread Configuration pushed[16]; /* of <<<...>>>, which may nest */
static __thread int depth;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
    if (depth < 16) pushed[depth++] = (Configuration){grid, block, shared, stream};
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    if (!depth) return nocuda_error(cudaErrorMissingConfiguration);
    Configuration *last = &pushed[--depth];
    *grid = last->grid;
    *block = last->block;
    *shared = last->shared;
    *(cudaStream_t *)stream = last->stream;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) { *kernel = (cudaKernel_t)function; return cudaSuccess; }
static cudaError_t launch(const void *function, dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    return nocuda_launch(nocuda_kernel(function, NULL), stream, grid, block, shared, 0);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    COUNT;
    return launch((const void *)kernel, grid, block, shared, stream);
}
cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    COUNT;
    return launch(function, grid, block, shared, stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    COUNT;
    return launch(function, grid, block, shared, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *function, void **arguments) {
    COUNT;
    return launch(function, c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream);
}

/* Registers and occupancy are not known without reading the machine code; these are those of a common kernel. */
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *function) {
    COUNT;
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024;
    a->numRegs = 32;
    a->ptxVersion = a->binaryVersion = nocuda_gpu.major * 10 + nocuda_gpu.minor;
    a->maxDynamicSharedSizeBytes = (int)nocuda_gpu.shared_per_block_most;
    a->nonPortableClusterSizeAllowed = 1;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute which, int value) {
    COUNT;
    bool too_much = which == cudaFuncAttributeMaxDynamicSharedMemorySize && value > (int)nocuda_gpu.shared_per_block_most;
    return nocuda_error(too_much ? cudaErrorInvalidValue : cudaSuccess);
}
static int resident_blocks(int threads, size_t shared) {
    int by_threads = nocuda_gpu.threads_per_sm / (threads > 0 ? threads : 1);
    int by_shared = (int)(nocuda_gpu.shared_per_sm / (shared + 1024));
    int most = by_threads < by_shared ? by_threads : by_shared;
    if (most > nocuda_gpu.blocks_per_sm) most = nocuda_gpu.blocks_per_sm;
    return most < 1 ? 1 : most;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *function, int threads, size_t shared, unsigned flags) {
    COUNT;
    *count = resident_blocks(threads, shared);
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *function, int threads, size_t shared) {
    COUNT;
    *count = resident_blocks(threads, shared);
    return cudaSuccess;
}
cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *options, void **values, unsigned count,
                                enum cudaLibraryOption *library_options, void **library_values, unsigned library_count) {
    COUNT;
    *library = calloc(1, 64);
    return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) {
    COUNT;
    *kernel = malloc(16);
    nocuda_kernel(*kernel, name);
    return cudaSuccess;
}

/* ---- the driver's: Triton's and nvrtc's kernels ------------------------------------------------------------------------ */
static CUresult load(CUmodule *module) { *module = calloc(1, 64); return CUDA_SUCCESS; }
CUresult cuModuleLoad(CUmodule *module, const char *path) { COUNT; return load(module); }
CUresult cuModuleLoadData(CUmodule *module, const void *image) { COUNT; return load(module); }
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values) { COUNT; return load(module); }
CUresult cuModuleUnload(CUmodule module) { COUNT; free(module); return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    COUNT;
    *function = malloc(16); /* stays: launches are looked up by it, at exit too */
    nocuda_kernel(*function, name);
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction function) {
    COUNT;
    switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = nocuda_gpu.major * 10 + nocuda_gpu.minor; break;
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) {
    COUNT;
    bool too_much = which == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value > (int)nocuda_gpu.shared_per_block_most;
    return too_much ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, CUfunction function, int threads, size_t shared) {
    COUNT;
    *count = resident_blocks(threads, shared);
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction function, const CUlaunchConfig *c) { COUNT; *count = 16; return CUDA_SUCCESS; }

static CUresult launch_by_driver(CUfunction function, dim3 grid, dim3 block, unsigned shared, CUstream stream, int callback) {
    cudaError_t error = nocuda_launch(nocuda_kernel(function, NULL), stream, grid, block, shared, callback);
    return error == cudaErrorInvalidConfiguration ? CUDA_ERROR_INVALID_VALUE : (CUresult)error; /* the driver's has no word for it */
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **arguments, void **extra) {
    COUNT;
    return launch_by_driver(function, (dim3){gx, gy, gz}, (dim3){bx, by, bz}, shared, stream, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel);
}
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned shared, CUstream stream, void **arguments) {
    COUNT;
    return launch_by_driver(function, (dim3){gx, gy, gz}, (dim3){bx, by, bz}, shared, stream, CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **arguments, void **extra) {
    COUNT;
    return launch_by_driver(function, (dim3){c->gridDimX, c->gridDimY, c->gridDimZ}, (dim3){c->blockDimX, c->blockDimY, c->blockDimZ},
                            c->sharedMemBytes, c->hStream, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx);
}
