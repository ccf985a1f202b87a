/* Counts calls. Generated stubs include this alone: CUDA's headers declare the same functions with their arguments. */
#ifndef COUNTER_H
#define COUNTER_H
typedef struct Counter {
    const char *name;
    _Atomic unsigned long calls;
    struct Counter *next;
    _Atomic int listed;
} Counter;
void nocuda_count(Counter *counter);
int nocuda_unknown(Counter *counter);        /* body of a stub that answers "success" */
int nocuda_library_launch(Counter *counter, void *handle); /* of one that stands for kernels; the library's handle */
int nocuda_set_stream(Counter *counter, void *handle, void *stream); /* of one that says where they are queued */
int nocuda_make(Counter *counter, void **made); /* of one that makes a handle or a descriptor */
int nocuda_free(Counter *counter, void *made);
#endif
