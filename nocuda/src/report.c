/* Counts calls and launches, tells observers, writes what was seen. */
#include "nocuda.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static Counter *_Atomic counters;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static FILE *trace_file;
static _Atomic unsigned observed; /* mask of Seen */
static Observer observer;
static __thread bool telling; /* an observer runs Python, which may call CUDA */
_Atomic unsigned long nocuda_launch_count, nocuda_replayed_launches, nocuda_work;
static _Atomic unsigned long seen_calls[16], seen_bytes[16];

#define BUCKETS 65536
static Kernel *_Atomic kernels[BUCKETS];
static pthread_mutex_t kernels_lock = PTHREAD_MUTEX_INITIALIZER;

void nocuda_write(const char *path);

static void at_exit(void) {
    const char *path = getenv("NOCUDA_REPORT");
    if (path && nocuda_devices[0].has_context) {
        char full[4096];
        snprintf(full, sizeof full, "%s.%d", path, (int)getpid());
        nocuda_write(full);
    }
    if (trace_file) fflush(trace_file);
}

static void setup(void) {
    const char *path = getenv("NOCUDA_TRACE");
    if (path) trace_file = fopen(path, "a");
    nocuda_setup_devices();
    nocuda_reserve_addresses();
    atexit(at_exit);
}

void nocuda_ready(void) { pthread_once(&once, setup); }

void nocuda_count(Counter *counter) {
    nocuda_ready();
    int expected = 0;
    if (!atomic_load_explicit(&counter->listed, memory_order_relaxed) &&
        atomic_compare_exchange_strong(&counter->listed, &expected, 1)) {
        Counter *head = atomic_load(&counters);
        do counter->next = head;
        while (!atomic_compare_exchange_weak(&counters, &head, counter));
    }
    atomic_fetch_add_explicit(&counter->calls, 1, memory_order_relaxed);
}

void nocuda_trace(const char *format, ...) {
    if (!trace_file) return;
    va_list arguments;
    va_start(arguments, format);
    flockfile(trace_file);
    vfprintf(trace_file, format, arguments);
    fputc('\n', trace_file);
    funlockfile(trace_file);
    va_end(arguments);
}

/* Functions without a body that were called; few, and never forgotten: what one should have done may matter later. */
#define UNKNOWN_MOST 256
static const char *unknown[UNKNOWN_MOST];
static int unknown_count;
static pthread_mutex_t unknown_lock = PTHREAD_MUTEX_INITIALIZER;

static void remember(const char *name) {
    pthread_mutex_lock(&unknown_lock);
    int at = 0;
    while (at < unknown_count && strcmp(unknown[at], name)) at++;
    if (at == unknown_count && at < UNKNOWN_MOST) unknown[unknown_count++] = strdup(name);
    pthread_mutex_unlock(&unknown_lock);
}

static int index_of(Seen what) { return __builtin_ctz((unsigned)what); }

void nocuda_tell(Seen what, const char *name, unsigned long long bytes, int from, int to) {
    if (what == SEEN_UNKNOWN) remember(name);
    int index = what == SEEN_COPY ? 4 + 2 * (from >= 0) + (to >= 0) : index_of(what);
    atomic_fetch_add_explicit(&seen_calls[index], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&seen_bytes[index], bytes, memory_order_relaxed);
    if (!(atomic_load_explicit(&observed, memory_order_relaxed) & (unsigned)what) || telling) return;
    telling = true;
    observer(what, name, bytes, from, to);
    telling = false;
}

int nocuda_unknown(Counter *counter) {
    bool first = !atomic_load(&counter->listed);
    nocuda_count(counter);
    if (first) nocuda_tell(SEEN_UNKNOWN, counter->name, 0, -1, -1);
    nocuda_trace("%s (no body)", counter->name);
    return 0;
}

/* Kernels are looked up at each launch, by many threads; only a new one takes the lock. */
Kernel *nocuda_kernel(const void *handle, const char *name) {
    unsigned bucket = (unsigned)(((uintptr_t)handle >> 4) * 2654435761u) % BUCKETS;
    for (Kernel *one = atomic_load(&kernels[bucket]); one; one = one->next)
        if (one->handle == handle && (!name || !strcmp(one->name, name))) return one;
    pthread_mutex_lock(&kernels_lock);
    Kernel *made = calloc(1, sizeof *made);
    made->handle = handle;
    made->name = strdup(name ? name : "(not registered)");
    made->next = atomic_load(&kernels[bucket]);
    atomic_store(&kernels[bucket], made);
    pthread_mutex_unlock(&kernels_lock);
    return made;
}

/* ---- what the Python side calls -------------------------------------------------------------------------------- */
void nocuda_observe(unsigned mask, Observer function) {
    atomic_store(&observed, 0);
    observer = function;
    atomic_store(&observed, function ? mask : 0);
}
unsigned long nocuda_launches(void) { return nocuda_launch_count; }
unsigned long nocuda_calls(const char *name) {
    unsigned long calls = 0;
    for (Counter *one = atomic_load(&counters); one; one = one->next)
        if (!strcmp(one->name, name)) calls += one->calls;
    return calls;
}
void nocuda_reset(void) {
    nocuda_launch_count = nocuda_replayed_launches = 0;
    for (int i = 0; i < 16; i++) seen_calls[i] = seen_bytes[i] = 0;
    for (Counter *one = atomic_load(&counters); one; one = one->next) one->calls = 0;
    for (int i = 0; i < BUCKETS; i++)
        for (Kernel *one = atomic_load(&kernels[i]); one; one = one->next) one->launches = 0;
}

static void write_text(FILE *file, const char *text) {
    fputc('"', file);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', file);
        if ((unsigned char)*text >= 32) fputc(*text, file);
    }
    fputc('"', file);
}

void nocuda_write(const char *path) {
    FILE *file = fopen(path, "w");
    if (!file) return;
    const char *separator = "";
    fprintf(file, "{\"launches\": %lu, \"replayed\": %lu, \"synchronisations\": %lu,\n\"copies\": {", nocuda_launch_count,
            nocuda_replayed_launches, seen_calls[index_of(SEEN_SYNCHRONISATION)]);
    const char *const ways[] = {"host to host", "host to device", "device to host", "device to device"};
    for (int i = 0; i < 4; i++)
        fprintf(file, "%s\"%s\": [%lu, %lu]", i ? ", " : "", ways[i], seen_calls[4 + i], seen_bytes[4 + i]);
    fprintf(file, "},\n\"peak_bytes\": [");
    for (int d = 0; d < nocuda_gpu.devices; d++) fprintf(file, "%s%zu", d ? ", " : "", nocuda_devices[d].peak);
    fprintf(file, "],\n\"unknown\": [");
    pthread_mutex_lock(&unknown_lock);
    for (int i = 0; i < unknown_count; i++) {
        if (i) fputs(", ", file);
        write_text(file, unknown[i]);
    }
    pthread_mutex_unlock(&unknown_lock);
    fprintf(file, "],\n\"calls\": {");
    for (Counter *one = atomic_load(&counters); one; one = one->next)
        if (one->calls) {
            fprintf(file, "%s\n", separator);
            write_text(file, one->name);
            fprintf(file, ": %lu", one->calls);
            separator = ",";
        }
    fprintf(file, "},\n\"kernels\": {");
    separator = "";
    for (int i = 0; i < BUCKETS; i++)
        for (Kernel *one = atomic_load(&kernels[i]); one; one = one->next)
            if (one->launches) {
                fprintf(file, "%s\n", separator);
                write_text(file, one->name);
                fprintf(file, ": %lu", one->launches);
                separator = ",";
            }
    fprintf(file, "}}\n");
    fclose(file);
}
