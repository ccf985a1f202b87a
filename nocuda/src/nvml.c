/* NVML, which PyTorch asks when memory is out, and perflab for clocks and neighbours; and NVTX, which only looks. */
#include "nocuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NVML_INVALID_ARGUMENT = 2, NVML_NOT_FOUND = 6 };
static int handle_of(void **handle, int device) {
    if (device < 0 || device >= nocuda_gpu.devices) return NVML_INVALID_ARGUMENT;
    *handle = &nocuda_devices[device];
    return 0;
}
static int number_of(void *handle) { return (int)((Device *)handle - nocuda_devices); }
static void uuid_text(int device, char *text, unsigned size) {
    unsigned char u[16];
    nocuda_uuid(device, u);
    snprintf(text, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3],
             u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}
int nvmlInit_v2(void) { COUNT; return 0; }
int nvmlInit(void) { COUNT; return 0; } /* by which PyTorch counts devices without opening CUDA */
int nvmlInitWithFlags(unsigned flags) { COUNT; return 0; }
int nvmlShutdown(void) { COUNT; return 0; }
const char *nvmlErrorString(int error) { COUNT; return error ? "nocuda: an NVML error" : "The operation was successful"; }
int nvmlDeviceGetCount_v2(unsigned *count) { COUNT; *count = (unsigned)nocuda_gpu.devices; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned device, void **handle) { COUNT; return handle_of(handle, (int)device); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) {
    COUNT;
    const char *colon = strchr(bus, ':');
    return handle_of(handle, colon ? (int)strtol(colon + 1, NULL, 16) - 0x1a : -1);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    COUNT;
    char text[64];
    for (int d = 0; d < nocuda_gpu.devices; d++) {
        uuid_text(d, text, sizeof text);
        if (!strcmp(uuid, text)) return handle_of(handle, d);
    }
    return NVML_NOT_FOUND;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) { COUNT; uuid_text(number_of(handle), text, size); return 0; }
int nvmlDeviceGetName(void *handle, char *text, unsigned size) { COUNT; snprintf(text, size, "%s", nocuda_gpu.name); return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { COUNT; snprintf(text, size, "nocuda"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { COUNT; *version = DRIVER_VERSION; return 0; }
static int clock_mhz(int type) { return (type == 2 ? nocuda_gpu.memory_clock_khz : nocuda_gpu.clock_khz) / 1000; }
int nvmlDeviceGetClockInfo(void *handle, int type, unsigned *mhz) { COUNT; *mhz = (unsigned)clock_mhz(type); return 0; }
int nvmlDeviceGetMaxClockInfo(void *handle, int type, unsigned *mhz) { COUNT; *mhz = (unsigned)clock_mhz(type); return 0; }
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius) { COUNT; *celsius = 40; return 0; }
int nvmlDeviceGetTemperatureV(void *handle, unsigned *reading) { COUNT; reading[2] = 40; return 0; }
int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) { COUNT; *milliwatts = 100000; return 0; }
int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *reasons) { COUNT; *reasons = 1; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons) { COUNT; *reasons = 1; return 0; }
static int no_processes(unsigned *count) { *count = 0; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, void *processes) { COUNT; return no_processes(count); }
int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, void *processes) { COUNT; return no_processes(count); }
int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, void *processes) { COUNT; return no_processes(count); }
int nvmlDeviceGetUtilizationRates(void *handle, unsigned *rates) { COUNT; rates[0] = rates[1] = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *info) {
    COUNT;
    info[0] = nocuda_gpu.total_bytes;
    info[2] = nocuda_gpu.context_bytes + ((Device *)handle)->used;
    info[1] = info[0] - info[2];
    return 0;
}

/* ---- NVTX: as a tool that is loaded by NVTX_INJECTION64_PATH --------------------------------------------------------- */
typedef struct { /* nvtxEventAttributes_t, as far as its message */
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const char *message;
} Attributes;
enum { MARK = 2, RANGE_START = 5, RANGE_END = 7, PUSH_ATTRIBUTES = 8, PUSH = 9, POP = 11 }; /* nvtxCallbackIdCore */
enum { EXPORT_CALLBACKS = 1, MODULE_CORE = 1 };
static __thread int nesting;
static _Atomic uint64_t range_ids;
static int nvtx_push(const char *text) { COUNT; nocuda_trace("nvtxRangePush %s", text); return nesting++; }
static int nvtx_push_attributes(const Attributes *a) { return nvtx_push(a->message); }
static int nvtx_pop(void) { COUNT; nocuda_trace("nvtxRangePop"); return --nesting; }
static void nvtx_mark(const char *text) { COUNT; nocuda_trace("nvtxMark %s", text); }
static uint64_t nvtx_start(const char *text) { COUNT; nocuda_trace("nvtxRangeStart %s", text); return ++range_ids; }
static void nvtx_end(uint64_t id) { COUNT; nocuda_trace("nvtxRangeEnd %lu", (unsigned long)id); }
typedef struct { size_t size; int (*table)(unsigned module, void ****table, unsigned *size); } Callbacks;
int InitializeInjectionNvtx2(const void *(*exported)(uint32_t)) {
    const Callbacks *callbacks = exported(EXPORT_CALLBACKS);
    void ***table;
    unsigned size;
    if (!callbacks || !callbacks->table(MODULE_CORE, &table, &size)) return 0;
    const struct { unsigned id; void *function; } ours[] = {
        {MARK, (void *)nvtx_mark}, {RANGE_START, (void *)nvtx_start}, {RANGE_END, (void *)nvtx_end},
        {PUSH_ATTRIBUTES, (void *)nvtx_push_attributes}, {PUSH, (void *)nvtx_push}, {POP, (void *)nvtx_pop},
    };
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (ours[i].id < size) *table[ours[i].id] = ours[i].function;
    return 1;
}
