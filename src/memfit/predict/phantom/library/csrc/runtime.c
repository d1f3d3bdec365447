/* Streams, events, graphs and kernels: everything is done at once, nothing is computed. */
#include "phantom.h"
#include <string.h>
#include <driver_types.h>

typedef struct { unsigned x, y, z; } Size3;

/* ---- streams and events ------------------------------------------------------------------------------------- */

EXPORT int cudaStreamCreate(void **stream) { *stream = new_handle(); return SUCCESS; }
EXPORT int cudaStreamCreateWithFlags(void **stream, unsigned flags) { (void)flags; return cudaStreamCreate(stream); }
EXPORT int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
  (void)flags, (void)priority;
  return cudaStreamCreate(stream);
}
EXPORT int cudaStreamGetPriority(void *stream, int *priority) { (void)stream; *priority = 0; return SUCCESS; }
EXPORT int cudaEventCreate(void **event) { *event = new_handle(); return SUCCESS; }
EXPORT int cudaEventCreateWithFlags(void **event, unsigned flags) { (void)flags; return cudaEventCreate(event); }
EXPORT int cudaEventElapsedTime(float *milliseconds, void *from, void *to) {
  (void)from, (void)to;
  note_assumption("times between events were asked for; each was answered with 0.01 ms");
  *milliseconds = 0.01f;
  return SUCCESS;
}
EXPORT int cudaEventElapsedTime_v2(float *milliseconds, void *from, void *to) { return cudaEventElapsedTime(milliseconds, from, to); }
EXPORT int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data) { (void)stream; function(data); return SUCCESS; }
EXPORT int cudaStreamAddCallback(void *stream, void (*function)(void *, int, void *), void *data, unsigned flags) {
  (void)flags;
  function(stream, SUCCESS, data);
  return SUCCESS;
}

/* ---- graphs: one capture at a time -------------------------------------------------------------------------- */

static void *captured_stream, *captured_graph;
static unsigned long long capture_number;
static int is_capturing;

static int capture_state(void *stream) {
  return is_capturing && stream == captured_stream ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
}
EXPORT int cudaStreamBeginCapture(void *stream, int mode) {
  (void)mode;
  captured_stream = stream, captured_graph = new_handle(), is_capturing = 1, capture_number++;
  return SUCCESS;
}
EXPORT int cudaStreamEndCapture(void *stream, void **graph) { (void)stream; *graph = captured_graph; is_capturing = 0; return SUCCESS; }
EXPORT int cudaStreamIsCapturing(void *stream, int *state) { *state = capture_state(stream); return SUCCESS; }
static int capture_info(void *stream, int *state, unsigned long long *number, void **graph, size_t *count) {
  *state = capture_state(stream);
  if (number) *number = *state == cudaStreamCaptureStatusActive ? capture_number : 0;
  if (graph) *graph = captured_graph;
  if (count) *count = 0;
  return SUCCESS;
}
#if CUDA_VERSION_NUMBER >= 13000
EXPORT int cudaStreamGetCaptureInfo(void *stream, int *state, unsigned long long *number, void **graph, void *from, void *edges,
                                    size_t *count) {
  (void)from, (void)edges;
  return capture_info(stream, state, number, graph, count);
}
#else
EXPORT int cudaStreamGetCaptureInfo_v2(void *stream, int *state, unsigned long long *number, void **graph, void *from, size_t *count) {
  (void)from;
  return capture_info(stream, state, number, graph, count);
}
EXPORT int cudaStreamGetCaptureInfo_v3(void *stream, int *state, unsigned long long *number, void **graph, void *from, void *edges,
                                       size_t *count) {
  (void)from, (void)edges;
  return capture_info(stream, state, number, graph, count);
}
#endif
EXPORT int cudaGraphInstantiate(void **runnable, void *graph, unsigned long long flags) { (void)graph, (void)flags; *runnable = new_handle(); return SUCCESS; }
EXPORT int cudaGraphInstantiateWithFlags(void **runnable, void *graph, unsigned long long flags) { return cudaGraphInstantiate(runnable, graph, flags); }
EXPORT int cudaGraphGetNodes(void *graph, void **nodes, size_t *count) {
  (void)graph;
  if (nodes && *count) *nodes = new_handle();
  *count = 1; /* an empty graph makes torch warn */
  return SUCCESS;
}
EXPORT int cudaThreadExchangeStreamCaptureMode(int *mode) { static __thread int current; int before = current; current = *mode; *mode = before; return SUCCESS; }

/* ---- kernels ------------------------------------------------------------------------------------------------ */

static void *registered[4];
EXPORT void **__cudaRegisterFatBinary(void *binary) { (void)binary; return registered; }
EXPORT int __cudaGetKernel(const void **kernel, const void *function) { *kernel = function; return SUCCESS; }
EXPORT unsigned __cudaPushCallConfiguration(Size3 grid, Size3 block, size_t shared, void *stream) {
  (void)grid, (void)block, (void)shared, (void)stream;
  return 0;
}
EXPORT int __cudaPopCallConfiguration(Size3 *grid, Size3 *block, size_t *shared, void **stream) {
  if (grid) *grid = (Size3){1, 1, 1};
  if (block) *block = (Size3){1, 1, 1};
  if (shared) *shared = 0;
  if (stream) *stream = NULL;
  return SUCCESS;
}
EXPORT int cudaLaunchKernel(const void *function, Size3 grid, Size3 block, void **arguments, size_t shared, void *stream) {
  (void)function, (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
  note_launch();
  return SUCCESS;
}
EXPORT int __cudaLaunchKernel(void *kernel, Size3 grid, Size3 block, void **arguments, size_t shared, void *stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
EXPORT int cudaLaunchKernelExC(const void *configuration, const void *function, void **arguments) {
  (void)configuration, (void)function, (void)arguments;
  note_launch();
  return SUCCESS;
}
/* Kernels were compiled for certain processors; the one that would run is not always the device's own (86 on 89). */
static int kernel_version;
EXPORT void phantom_kernels_for(int version) { kernel_version = version; }

EXPORT int cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *function) {
  (void)function;
  memset(found, 0, sizeof *found);
  found->maxThreadsPerBlock = 1024, found->numRegs = 32, found->maxDynamicSharedSizeBytes = 49152;
  found->ptxVersion = found->binaryVersion = kernel_version ? kernel_version : gpu.major * 10 + gpu.minor;
  return SUCCESS;
}
EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *count, const void *function, int threads, size_t shared) {
  (void)function, (void)shared;
  int by_threads = threads > 0 ? gpu.threads_per_processor / threads : 1;
  *count = by_threads < 1 ? 1 : by_threads > gpu.blocks_per_processor ? gpu.blocks_per_processor : by_threads;
  return SUCCESS;
}
EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *function, int threads, size_t shared, unsigned flags) {
  (void)flags;
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(count, function, threads, shared);
}
EXPORT int cudaGetSymbolAddress(void **address, const void *symbol) { *address = (void *)symbol; return SUCCESS; }
EXPORT int cudaLibraryLoadData(void **library, const void *code, void *a, void **b, unsigned c, void *d, void **e, unsigned f) {
  (void)code, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
  *library = new_handle();
  return SUCCESS;
}
EXPORT int cudaLibraryGetKernel(void **kernel, void *library, const char *name) { (void)library, (void)name; *kernel = new_handle(); return SUCCESS; }
