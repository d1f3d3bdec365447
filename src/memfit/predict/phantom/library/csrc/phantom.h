/* What the parts of the phantom GPU share.
 *
 * The library takes the place of the CUDA driver, runtime, cuBLAS and cuDNN inside one process. Device memory is
 * reserved address space with an account; kernels do nothing; events and streams are done at once. Whatever torch
 * imports beyond the entry points written here is generated (see stub_list.py): reviewed ones succeed, all others
 * refuse with their name. */
#pragma once
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define MIB ((size_t)1 << 20)

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_SUCH_DEVICE = 101, NOT_SUPPORTED = 801 };

/* The same fields, in the same order, as `Description` in library.py. */
typedef struct {
  char name[64];
  uint64_t total_bytes, context_bytes;
  uint64_t shared_per_block_bytes, shared_per_processor_bytes, l2_bytes;
  int32_t major, minor, num_processors, threads_per_processor, blocks_per_processor, bus_bits;
} Gpu;

extern Gpu gpu;
extern pthread_mutex_t lock;

/* device memory (memory.c) */
int is_on_device(const void *address);
int take_memory(size_t num_bytes); /* 1 when the device has room */
void return_memory(size_t num_bytes);
uintptr_t take_range(size_t num_bytes);
void return_range(uintptr_t start, size_t num_bytes);

/* values of properties, by the number of the attribute (device.c) */
int attribute_value(int attribute);

/* the real cuDNN (cudnn.c), and a handle for its questions (cudnn_sizes.c); NULL where there is none */
void *cudnn_function(const char *name);
const void *cudnn_device(void);
void *cudnn_handle(void);

/* opaque handles: never dereferenced, never the same (report.c) */
void *new_handle(void);

/* what the run's report says afterwards (report.c) */
long refuse(const char *name, long status);
void note_assumption(const char *name);
void note_launch(void);
int runtime_error(int status); /* remembers it for cudaGetLastError */
