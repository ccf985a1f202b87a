/* What a GPU says of itself: from NOCUDA_GPU, and by its compute capability. */
#include "nocuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An H100 SXM, as CUDA reports it. `environment()` in launch.py writes NOCUDA_GPU for another: name=value;name=value. */
Gpu nocuda_gpu = {
    .name = "NVIDIA H100 80GB HBM3", .devices = 1, .total_bytes = 85017493504ull, .context_bytes = 768ull << 20,
    .l2_bytes = 52428800, .major = 9, .minor = 0, .multiprocessors = 132, .clock_khz = 1980000,
    .memory_clock_khz = 2619000, .bus_bits = 5120,
};
Device nocuda_devices[MAX_DEVICES];
__thread int nocuda_current;

/* CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". */
static const struct { int capability, threads, blocks; size_t shared, shared_block; } limits[] = {
    {70, 2048, 32, 98304, 98304},    {75, 1024, 16, 65536, 65536},    {80, 2048, 32, 167936, 166912},
    {86, 1536, 16, 102400, 101376},  {87, 1536, 16, 167936, 166912},  {89, 1536, 24, 102400, 101376},
    {90, 2048, 32, 233472, 232448},  {100, 2048, 32, 233472, 232448}, {103, 2048, 32, 233472, 232448},
    {120, 1536, 24, 102400, 101376},
};

static void set(const char *name, const char *value) {
    Gpu *gpu = &nocuda_gpu;
    long long number = atoll(value);
    if (!strcmp(name, "name")) snprintf(gpu->name, sizeof gpu->name, "%s", value);
    else if (!strcmp(name, "devices")) gpu->devices = (int)number;
    else if (!strcmp(name, "total_bytes")) gpu->total_bytes = (size_t)number;
    else if (!strcmp(name, "context_bytes")) gpu->context_bytes = (size_t)number;
    else if (!strcmp(name, "l2_bytes")) gpu->l2_bytes = (size_t)number;
    else if (!strcmp(name, "capability")) { gpu->major = (int)number / 10; gpu->minor = (int)number % 10; }
    else if (!strcmp(name, "multiprocessors")) gpu->multiprocessors = (int)number;
}

void nocuda_setup_devices(void) {
    Gpu *gpu = &nocuda_gpu;
    const char *text = getenv("NOCUDA_GPU");
    char *copy = text ? strdup(text) : NULL, *rest = copy, *part;
    while (rest && (part = strsep(&rest, ";"))) {
        char *value = strchr(part, '=');
        if (value) { *value = 0; set(part, value + 1); }
    }
    free(copy);
    if (gpu->devices < 0) gpu->devices = 0;
    if (gpu->devices > MAX_DEVICES) gpu->devices = MAX_DEVICES;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible) { /* all are alike, so only their number matters; what comes after an invalid one is not there */
        int seen = 0;
        for (const char *at = visible; *at && *at != '-'; at++) {
            if (*at >= '0' && *at <= '9' && atoi(at) >= gpu->devices) break;
            seen++;
            at = strchr(at, ',');
            if (!at) break;
        }
        if (seen < gpu->devices) gpu->devices = seen;
    }
    int capability = gpu->major * 10 + gpu->minor;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].capability <= capability) {
            gpu->threads_per_sm = limits[i].threads;
            gpu->blocks_per_sm = limits[i].blocks;
            gpu->shared_per_sm = limits[i].shared;
            gpu->shared_per_block_most = limits[i].shared_block;
        }
}

void nocuda_uuid(int device, unsigned char uuid[16]) {
    for (int i = 0; i < 15; i++) uuid[i] = (unsigned char)"nocuda computes"[i];
    uuid[15] = (unsigned char)device;
}

cudaError_t cudaGetDeviceCount(int *count) {
    COUNT;
    *count = nocuda_gpu.devices;
    return nocuda_error(*count ? cudaSuccess : cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int *device) { COUNT; *device = nocuda_current; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
    COUNT;
    if (device < 0 || device >= nocuda_gpu.devices) return nocuda_error(cudaErrorInvalidDevice);
    nocuda_current = device;
    nocuda_devices[device].has_context = true;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) { COUNT; *version = DRIVER_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { COUNT; *version = CUDART_VERSION; return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    COUNT;
    const Gpu *gpu = &nocuda_gpu;
    if (device < 0 || device >= gpu->devices) return nocuda_error(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%.255s", gpu->name);
    nocuda_uuid(device, (unsigned char *)p->uuid.bytes);
    p->totalGlobalMem = gpu->total_bytes;
    p->l2CacheSize = (int)gpu->l2_bytes;
    p->major = gpu->major;
    p->minor = gpu->minor;
    p->multiProcessorCount = gpu->multiprocessors;
    p->maxThreadsPerMultiProcessor = gpu->threads_per_sm;
    p->maxBlocksPerMultiProcessor = gpu->blocks_per_sm;
    p->sharedMemPerMultiprocessor = gpu->shared_per_sm;
    p->sharedMemPerBlockOptin = gpu->shared_per_block_most;
    p->memoryBusWidth = gpu->bus_bits;
    p->sharedMemPerBlock = 49152;
    p->reservedSharedMemPerBlock = 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->memPitch = 2147483647;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 65536;
    p->textureAlignment = 512;
    p->texturePitchAlignment = 32;
    p->pciBusID = 0x1a + device;
    p->asyncEngineCount = 3;
    p->canMapHostMemory = p->concurrentKernels = p->ECCEnabled = p->unifiedAddressing = p->managedMemory = 1;
    p->concurrentManagedAccess = p->streamPrioritiesSupported = p->globalL1CacheSupported = 1;
    p->localL1CacheSupported = p->computePreemptionSupported = p->canUseHostPointerForRegisteredMem = 1;
    p->cooperativeLaunch = p->hostRegisterSupported = p->memoryPoolsSupported = p->unifiedFunctionPointers = 1;
    p->clusterLaunch = gpu->major >= 9;
    return cudaSuccess;
}

/* CUdevice_attribute and cudaDeviceAttr have the same numbers. */
static int attribute(CUdevice_attribute which, int device) {
    const Gpu *gpu = &nocuda_gpu;
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 49152;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: return 65536;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH: return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return 65536;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return gpu->clock_khz;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return gpu->memory_clock_khz;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return gpu->bus_bits;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT: return 512;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return gpu->multiprocessors;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return (int)gpu->l2_bytes;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return gpu->threads_per_sm;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return gpu->blocks_per_sm;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return (int)gpu->shared_per_sm;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return (int)gpu->shared_per_block_most;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 3;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return gpu->major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return gpu->minor;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return 0x1a + device;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: return gpu->major >= 9;
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS: return 1;
    default: return 0;
    }
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int device) {
    COUNT;
    if (device < 0 || device >= nocuda_gpu.devices) return nocuda_error(cudaErrorInvalidDevice);
    *value = attribute((CUdevice_attribute)which, device);
    return cudaSuccess;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device) {
    COUNT;
    *value = attribute(which, device);
    return CUDA_SUCCESS;
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
    COUNT;
    snprintf(text, (size_t)size, "0000:%02X:00.0", 0x1a + device);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    COUNT;
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { COUNT; *can = device != peer; return cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) { COUNT; return cudaSuccess; }

CUresult cuInit(unsigned flags) { COUNT; return nocuda_gpu.devices ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
CUresult cuDriverGetVersion(int *version) { COUNT; *version = DRIVER_VERSION; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    COUNT;
    if (ordinal < 0 || ordinal >= nocuda_gpu.devices) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int *count) { COUNT; *count = nocuda_gpu.devices; return CUDA_SUCCESS; }
CUresult cuDeviceGetName(char *text, int size, CUdevice device) {
    COUNT;
    snprintf(text, (size_t)size, "%s", nocuda_gpu.name);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    COUNT;
    nocuda_uuid(device, (unsigned char *)uuid->bytes);
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) { COUNT; *bytes = nocuda_gpu.total_bytes; return CUDA_SUCCESS; }
