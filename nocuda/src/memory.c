/* Device memory is reserved address space. Small copies are made, so that what the host sent can be read back. */
#include "nocuda.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ADDRESSES (1ull << 42) /* of a device: expandable segments reserve more than there is memory */
#define FIRST_ADDRESS 0x500000000000ull
#define COPIED ((size_t)4 << 20) /* more than this is not copied: large results read as zero */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread cudaError_t last_error;

void nocuda_reserve_addresses(void) {
    for (int d = 0; d < nocuda_gpu.devices; d++) {
        void *found = mmap((void *)(FIRST_ADDRESS + (uintptr_t)d * ADDRESSES), ADDRESSES, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (found == MAP_FAILED) {
            fprintf(stderr, "nocuda: no address space for device %d: this process is limited (ulimit -v)\n", d);
            nocuda_gpu.devices = d;
        } else nocuda_devices[d].base = (uintptr_t)found;
    }
}

int nocuda_device_of(const void *pointer) {
    uintptr_t at = (uintptr_t)pointer;
    for (int d = 0; d < nocuda_gpu.devices; d++)
        if (at >= nocuda_devices[d].base && at < nocuda_devices[d].base + ADDRESSES) return d;
    return -1;
}

size_t nocuda_granules(size_t bytes) { return (bytes + GRANULE - 1) & ~(GRANULE - 1); }

cudaError_t nocuda_error(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    return error;
}
cudaError_t cudaGetLastError(void) { COUNT; cudaError_t error = last_error; last_error = cudaSuccess; return error; }
cudaError_t cudaPeekAtLastError(void) { COUNT; return last_error; }

static bool has_room(const Device *device, size_t bytes) {
    return device->used + bytes + nocuda_gpu.context_bytes <= nocuda_gpu.total_bytes;
}
static void use(Device *device, size_t bytes) {
    device->used += bytes;
    if (device->used > device->peak) device->peak = device->used;
}

/* The first gap that is large enough. `counts`: it is memory, not only addresses. */
static void *take(int number, size_t bytes, bool counts) {
    Device *device = &nocuda_devices[number];
    size_t size = nocuda_granules(bytes);
    void *result = NULL;
    pthread_mutex_lock(&lock);
    device->has_context = true;
    if (!counts || has_room(device, size)) {
        uintptr_t at = device->base;
        Block **link = &device->blocks;
        while (*link && at + size > (*link)->start) {
            at = (*link)->start + (*link)->size;
            link = &(*link)->next;
        }
        if (at + size <= device->base + ADDRESSES && !mprotect((void *)at, size, PROT_READ | PROT_WRITE)) {
            Block *block = malloc(sizeof *block);
            *block = (Block){at, size, *link};
            *link = block;
            if (counts) use(device, size);
            result = (void *)at;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static bool give_back(void *pointer, bool counts) {
    int number = nocuda_device_of(pointer);
    if (number < 0) return false;
    Device *device = &nocuda_devices[number];
    bool found = false;
    pthread_mutex_lock(&lock);
    for (Block **link = &device->blocks; *link; link = &(*link)->next)
        if ((*link)->start == (uintptr_t)pointer) {
            Block *block = *link;
            *link = block->next;
            if (counts) device->used -= block->size;
            mmap((void *)block->start, block->size, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0); /* its pages go back to the host */
            free(block);
            found = true;
            break;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

bool nocuda_block_at(const void *pointer, uintptr_t *start, size_t *size) {
    int number = nocuda_device_of(pointer);
    bool found = false;
    if (number < 0) return false;
    pthread_mutex_lock(&lock);
    for (Block *one = nocuda_devices[number].blocks; one && !found; one = one->next)
        if ((uintptr_t)pointer >= one->start && (uintptr_t)pointer < one->start + one->size) {
            *start = one->start;
            *size = one->size;
            found = true;
        }
    pthread_mutex_unlock(&lock);
    return found;
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    COUNT;
    nocuda_profile_call(0 /* cudaMalloc */);
    cudaError_t refused = nocuda_unsafe_in_capture();
    if (refused) return nocuda_error(refused);
    *pointer = bytes ? take(nocuda_current, bytes, true) : NULL;
    nocuda_trace("cudaMalloc %zu -> %p", bytes, *pointer);
    return nocuda_error(*pointer || !bytes ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void *pointer) {
    COUNT;
    nocuda_profile_call(1 /* cudaFree */);
    nocuda_trace("cudaFree %p", pointer);
    if (!pointer) return cudaSuccess; /* makes a context, waits for nothing */
    cudaError_t refused = nocuda_host_waits("cudaFree", 0);
    if (refused) return nocuda_error(refused);
    return nocuda_error(give_back(pointer, true) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream) {
    COUNT;
    *pointer = bytes ? take(nocuda_current, bytes, true) : NULL;
    return nocuda_error(*pointer || !bytes ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) {
    COUNT;
    return nocuda_error(!pointer || give_back(pointer, true) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    COUNT;
    Device *device = &nocuda_devices[nocuda_current];
    device->has_context = true;
    *total = nocuda_gpu.total_bytes;
    *free_bytes = *total - nocuda_gpu.context_bytes - device->used;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    COUNT;
    *pool = (cudaMemPool_t)&nocuda_devices[device];
    return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr which, void *value) {
    COUNT;
    bool high = which == cudaMemPoolAttrUsedMemHigh || which == cudaMemPoolAttrReservedMemHigh;
    *(uint64_t *)value = high ? ((Device *)pool)->peak : ((Device *)pool)->used;
    return cudaSuccess;
}

/* ---- pinned memory ---------------------------------------------------------------------------------------------- */
typedef struct Pinned {
    uintptr_t start;
    size_t size;
    struct Pinned *next;
} Pinned;
static Pinned *pinned;

static void pin(void *pointer, size_t size) {
    Pinned *one = malloc(sizeof *one);
    pthread_mutex_lock(&lock);
    *one = (Pinned){(uintptr_t)pointer, size, pinned};
    pinned = one;
    pthread_mutex_unlock(&lock);
}
static bool find_pinned(const void *pointer, bool remove) {
    bool found = false;
    pthread_mutex_lock(&lock);
    for (Pinned **link = &pinned; *link && !found; ) {
        Pinned *one = *link;
        found = (uintptr_t)pointer >= one->start && (uintptr_t)pointer < one->start + one->size;
        if (found && remove) { *link = one->next; free(one); }
        else link = &one->next;
    }
    pthread_mutex_unlock(&lock);
    return found;
}
bool nocuda_is_host_memory(const void *pointer) { return find_pinned(pointer, false); }

cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned flags) {
    COUNT;
    if (posix_memalign(pointer, 4096, size ? size : 1)) return nocuda_error(cudaErrorMemoryAllocation);
    pin(*pointer, size ? size : 1);
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **pointer, size_t size) { COUNT; return cudaHostAlloc(pointer, size, 0); }
cudaError_t cudaFreeHost(void *pointer) { COUNT; find_pinned(pointer, true); free(pointer); return cudaSuccess; }
cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned flags) { COUNT; pin(pointer, size); return cudaSuccess; }
cudaError_t cudaHostUnregister(void *pointer) { COUNT; find_pinned(pointer, true); return cudaSuccess; }
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags) { COUNT; *device = host; return cudaSuccess; }

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *pointer) {
    COUNT;
    int device = nocuda_device_of(pointer);
    memset(a, 0, sizeof *a);
    a->device = device >= 0 ? device : -2;
    if (device >= 0) {
        a->type = cudaMemoryTypeDevice;
        a->devicePointer = (void *)pointer;
    } else if (nocuda_is_host_memory(pointer)) {
        a->type = cudaMemoryTypeHost;
        a->device = nocuda_current;
        a->hostPointer = a->devicePointer = (void *)pointer;
    } else {
        a->type = cudaMemoryTypeUnregistered;
        a->hostPointer = (void *)pointer;
    }
    return cudaSuccess;
}
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute which, CUdeviceptr pointer) {
    COUNT;
    int device = nocuda_device_of((void *)pointer);
    if (device < 0 && !nocuda_is_host_memory((void *)pointer)) return CUDA_ERROR_INVALID_VALUE;
    switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: cuDevicePrimaryCtxRetain(value, device < 0 ? 0 : device); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)value = device < 0 ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: *(CUdeviceptr *)value = pointer; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = device < 0 ? nocuda_current : device; break;
    default: *(uint64_t *)value = 0;
    }
    return CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange(CUdeviceptr *start, size_t *size, CUdeviceptr pointer) {
    COUNT;
    uintptr_t at;
    size_t bytes;
    if (!nocuda_block_at((void *)pointer, &at, &bytes)) return CUDA_ERROR_NOT_FOUND;
    if (start) *start = at;
    if (size) *size = bytes;
    return CUDA_SUCCESS;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */
/* PyTorch's allocator gives the same addresses to other tensors, and what a kernel would have written there must not read
   as what was sent before: sizes are made of such numbers. So only what was sent as a whole can be read back, and parts of
   it as long as nothing was launched. */
typedef struct Sent {
    uintptr_t start;
    size_t size;
    unsigned long work;
    struct Sent *next;
} Sent;
enum { SENT_BUCKETS = 16384, LAST_SENT = 64 };
static Sent *sent[SENT_BUCKETS], last_sent[LAST_SENT];
static unsigned sends;

static Sent **sent_at(uintptr_t start) {
    Sent **link = &sent[(unsigned)((start >> 4) * 2654435761u) % SENT_BUCKETS];
    while (*link && (*link)->start != start) link = &(*link)->next;
    return link;
}
static void remember(const void *pointer, size_t size) {
    pthread_mutex_lock(&lock);
    Sent **link = sent_at((uintptr_t)pointer);
    if (!*link) *link = calloc(1, sizeof **link);
    (*link)->start = (uintptr_t)pointer;
    (*link)->size = size;
    last_sent[sends++ % LAST_SENT] = (Sent){(uintptr_t)pointer, size, nocuda_work, NULL};
    pthread_mutex_unlock(&lock);
}
static void forget(const void *pointer) {
    pthread_mutex_lock(&lock);
    Sent *one = *sent_at((uintptr_t)pointer);
    if (one) one->size = 0;
    for (int i = 0; i < LAST_SENT; i++)
        if (last_sent[i].start == (uintptr_t)pointer) last_sent[i].size = 0;
    pthread_mutex_unlock(&lock);
}
static bool is_as_sent(const void *pointer, size_t size) {
    uintptr_t at = (uintptr_t)pointer;
    pthread_mutex_lock(&lock);
    Sent *one = *sent_at(at);
    bool found = one && one->size == size;
    for (int i = 0; i < LAST_SENT && !found; i++) {
        const Sent *last = &last_sent[i];
        found = last->work == nocuda_work && at >= last->start && at + size <= last->start + last->size;
    }
    pthread_mutex_unlock(&lock);
    return found;
}
bool nocuda_may_know(size_t bytes) { return bytes <= COPIED; }
bool nocuda_is_known(const void *pointer, size_t bytes) { return nocuda_may_know(bytes) && is_as_sent(pointer, bytes); }
void nocuda_know(const void *pointer, size_t bytes, bool known) { known ? remember(pointer, bytes) : forget(pointer); }
static void move(void *to, const void *from, size_t bytes) {
    bool from_device = nocuda_device_of(from) >= 0, to_device = nocuda_device_of(to) >= 0;
    if (bytes <= COPIED && (!from_device || is_as_sent(from, bytes))) {
        memcpy(to, from, bytes);
        if (to_device) remember(to, bytes);
    } else if (to_device) forget(to);
    else memset(to, 0, bytes);
}
static void fill(void *pointer, int value, size_t bytes) {
    if (!value || bytes > COPIED) forget(pointer);
    else {
        memset(pointer, value, bytes);
        remember(pointer, bytes);
    }
}
/* A copy to or from memory of the host that is not pinned makes the host wait, `Async` or not. */
static cudaError_t copy(const char *name, void *to, const void *from, size_t bytes, cudaStream_t stream, bool waits) {
    int source = nocuda_device_of(from), target = nocuda_device_of(to);
    bool pageable = source >= 0 && target < 0 && !nocuda_is_host_memory(to);
    nocuda_trace("%s %zu device %d -> %d stream %p", name, bytes, source, target, (void *)stream);
    if (waits || pageable) {
        cudaError_t refused = nocuda_host_waits(name, bytes);
        if (refused) return nocuda_error(refused);
    }
    nocuda_tell(SEEN_COPY, name, bytes, source, target);
    if (!nocuda_is_captured(stream, name)) move(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    COUNT;
    nocuda_profile_call(2 /* cudaMemcpy */);
    return copy(__func__, to, from, bytes, 0, true);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    COUNT;
    nocuda_profile_call(3 /* cudaMemcpyAsync */);
    return copy(__func__, to, from, bytes, stream, false);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int target, const void *from, int source, size_t bytes, cudaStream_t stream) {
    COUNT;
    return copy(__func__, to, from, bytes, stream, false);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows,
                              enum cudaMemcpyKind kind, cudaStream_t stream) {
    COUNT;
    nocuda_tell(SEEN_COPY, __func__, width * rows, nocuda_device_of(from), nocuda_device_of(to));
    if (!nocuda_is_captured(stream, __func__) && width * rows <= COPIED)
        for (size_t row = 0; row < rows; row++) move((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return cudaSuccess;
}
cudaError_t cudaMemset(void *pointer, int value, size_t bytes) {
    COUNT;
    fill(pointer, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream) {
    COUNT;
    nocuda_profile_call(4 /* cudaMemsetAsync */);
    nocuda_trace("cudaMemsetAsync %zu stream %p", bytes, (void *)stream);
    if (!nocuda_is_captured(stream, __func__)) fill(pointer, value, bytes);
    return cudaSuccess;
}
CUresult cuMemsetD8Async(CUdeviceptr pointer, unsigned char value, size_t bytes, CUstream stream) {
    COUNT;
    return (CUresult)cudaMemsetAsync((void *)pointer, value, bytes, stream);
}
CUresult cuMemsetD32Async(CUdeviceptr pointer, unsigned value, size_t words, CUstream stream) {
    COUNT;
    if (nocuda_is_captured(stream, __func__)) return CUDA_SUCCESS;
    if (!value || words * 4 > COPIED) forget((void *)pointer);
    else {
        for (size_t i = 0; i < words; i++) ((unsigned *)pointer)[i] = value;
        remember((void *)pointer, words * 4);
    }
    return CUDA_SUCCESS;
}
cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
    COUNT;
    return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol) {
    COUNT;
    *pointer = take(nocuda_current, 65536, false);
    return cudaSuccess;
}

/* ---- virtual memory management: expandable segments ----------------------------------------------------------------- */
typedef struct { size_t size; int device; } Physical;
CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *p, CUmemAllocationGranularity_flags flags) {
    COUNT;
    *bytes = GRANULE;
    return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr wanted, unsigned long long flags) {
    COUNT;
    *pointer = (CUdeviceptr)take(nocuda_current, size, false);
    return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size) { COUNT; give_back((void *)pointer, false); return CUDA_SUCCESS; }
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *p, unsigned long long flags) {
    COUNT;
    Device *device = &nocuda_devices[p->location.id];
    pthread_mutex_lock(&lock);
    bool fits = has_room(device, size);
    if (fits) use(device, size);
    pthread_mutex_unlock(&lock);
    if (!fits) return CUDA_ERROR_OUT_OF_MEMORY;
    Physical *made = malloc(sizeof *made);
    *made = (Physical){size, p->location.id};
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)made;
    return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    COUNT;
    Physical *one = (Physical *)(uintptr_t)handle;
    pthread_mutex_lock(&lock);
    nocuda_devices[one->device].used -= one->size;
    pthread_mutex_unlock(&lock);
    free(one);
    return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) { COUNT; return CUDA_SUCCESS; }
CUresult cuMemUnmap(CUdeviceptr pointer, size_t size) { COUNT; return CUDA_SUCCESS; }
CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *access, size_t count) { COUNT; return CUDA_SUCCESS; }
