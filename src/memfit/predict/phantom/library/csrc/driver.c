/* The driver's interface; this library carries its SONAME, libcuda.so.1. Numbers of attributes as in the public cuda.h. */
#define _GNU_SOURCE
#include "phantom.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POINTER_CONTEXT = 1, POINTER_MEMORY_TYPE = 2, POINTER_DEVICE_ADDRESS = 3, POINTER_DEVICE = 9 };
enum { FUNCTION_MOST_THREADS = 0, FUNCTION_REGISTERS = 4, FOUND = 0, NOT_FOUND = 1, NO_SUCH_TABLE = 500, GRANULE = 2 << 20 };

static void *const CONTEXT = (void *)16;

EXPORT int cuInit(unsigned flags) { (void)flags; return SUCCESS; }
EXPORT int cuDriverGetVersion(int *version) { *version = CUDA_VERSION_NUMBER; return SUCCESS; }
EXPORT int cuDeviceGetCount(int *count) { *count = 1; return SUCCESS; }
EXPORT int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? NO_SUCH_DEVICE : SUCCESS; }
EXPORT int cuDeviceGetName(char *text, int size, int device) { (void)device; snprintf(text, size, "%s", gpu.name); return SUCCESS; }
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) { (void)device; *value = attribute_value(attribute); return SUCCESS; }
EXPORT int cuDeviceTotalMem_v2(size_t *size, int device) { (void)device; *size = gpu.total_bytes; return SUCCESS; }
EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  (void)device;
  if (flags) *flags = 0;
  if (active) *active = 1;
  return SUCCESS;
}
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = CONTEXT; return SUCCESS; }
EXPORT int cuCtxGetCurrent(void **context) { *context = CONTEXT; return SUCCESS; }
EXPORT int cuCtxGetDevice(int *device) { *device = 0; return SUCCESS; }
EXPORT int cuCtxPopCurrent_v2(void **context) { if (context) *context = CONTEXT; return SUCCESS; }
EXPORT int cuCtxGetLimit(size_t *value, int limit) { (void)limit; *value = 0; return SUCCESS; }
EXPORT int cuGetErrorString(int status, const char **text) {
  *text = status == OUT_OF_MEMORY ? "out of memory" : status == NOT_SUPPORTED ? "the phantom GPU refuses this call" : "an error of the phantom GPU";
  return SUCCESS;
}
EXPORT int cuGetErrorName(int status, const char **text) { *text = status == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR"; return SUCCESS; }
/* Nothing is ever logged, so a listener has nothing to hear. */
EXPORT int cuLogsRegisterCallback(void *listener, void *data, void **handle) { (void)listener, (void)data; if (handle) *handle = new_handle(); return SUCCESS; }
EXPORT int cuPointerGetAttribute(void *value, int attribute, uintptr_t address) {
  int on_device = is_on_device((void *)address);
  switch (attribute) {
    case POINTER_CONTEXT: *(void **)value = CONTEXT; return SUCCESS;
    case POINTER_MEMORY_TYPE: *(unsigned *)value = on_device ? 2 : 1; return SUCCESS;
    case POINTER_DEVICE_ADDRESS: *(uintptr_t *)value = address; return on_device ? SUCCESS : INVALID_VALUE;
    case POINTER_DEVICE: *(int *)value = 0; return SUCCESS;
    default: return refuse("cuPointerGetAttribute", NOT_SUPPORTED);
  }
}

/* ---- modules and kernels ------------------------------------------------------------------------------------ */

EXPORT int cuModuleLoadData(void **module, const void *image) { (void)image; *module = new_handle(); return SUCCESS; }
EXPORT int cuModuleLoadDataEx(void **module, const void *image, unsigned count, void *options, void **values) {
  (void)count, (void)options, (void)values;
  return cuModuleLoadData(module, image);
}
EXPORT int cuModuleGetFunction(void **function, void *module, const char *name) { (void)module, (void)name; *function = new_handle(); return SUCCESS; }
EXPORT int cuFuncGetAttribute(int *value, int attribute, void *function) {
  (void)function;
  *value = attribute == FUNCTION_REGISTERS ? 32 : attribute == FUNCTION_MOST_THREADS ? 1024 : 0;
  return SUCCESS;
}
EXPORT int cuKernelGetFunction(void **function, void *kernel) { *function = kernel; return SUCCESS; }
EXPORT int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) { (void)device; return cuFuncGetAttribute(value, attribute, kernel); }
EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, void *function, int threads, size_t shared) {
  extern int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *, const void *, int, size_t);
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(count, function, threads, shared);
}
EXPORT int cuOccupancyMaxActiveClusters(int *count, void *function, const void *configuration) { (void)function, (void)configuration; *count = 8; return SUCCESS; }

/* ---- virtual memory, of which expandable segments are made --------------------------------------------------- */

EXPORT int cuMemGetAllocationGranularity(size_t *size, const void *properties, int option) { (void)properties, (void)option; *size = GRANULE; return SUCCESS; }
EXPORT int cuMemAddressReserve(uintptr_t *address, size_t size, size_t alignment, uintptr_t wish, unsigned long long flags) {
  (void)alignment, (void)wish, (void)flags;
  pthread_mutex_lock(&lock);
  *address = take_range((size + GRANULE - 1) / GRANULE * GRANULE);
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}
EXPORT int cuMemAddressFree(uintptr_t address, size_t size) {
  pthread_mutex_lock(&lock);
  return_range(address, (size + GRANULE - 1) / GRANULE * GRANULE);
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}
EXPORT int cuMemCreate(unsigned long long *handle, size_t size, const void *properties, unsigned long long flags) {
  (void)properties, (void)flags;
  pthread_mutex_lock(&lock);
  int fits = take_memory(size);
  pthread_mutex_unlock(&lock);
  if (!fits) return OUT_OF_MEMORY;
  size_t *kept = malloc(sizeof *kept);
  if (!kept) return OUT_OF_MEMORY;
  *kept = size;
  *handle = (uintptr_t)kept;
  return SUCCESS;
}
EXPORT int cuMemRelease(unsigned long long handle) {
  size_t *kept = (size_t *)(uintptr_t)handle;
  pthread_mutex_lock(&lock);
  return_memory(*kept);
  pthread_mutex_unlock(&lock);
  free(kept);
  return SUCCESS;
}

/* Private tables: none. NVRTC asks for one and takes no for an answer, but does not survive a driver without this. */
EXPORT int cuGetExportTable(const void **table, const void *name) { (void)name; *table = NULL; return NO_SUCH_TABLE; }

/* ---- looking up by name: ours, or not found ------------------------------------------------------------------ */

static int look_up(const char *name, void **address, int *result) {
  char wanted[128];
  Dl_info self;
  void *library = dladdr((void *)&look_up, &self) ? dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
  snprintf(wanted, sizeof wanted, "%s_v2", name); /* the plain name is the old layout where both exist */
  *address = library ? dlsym(library, wanted) : NULL;
  if (!*address && library) *address = dlsym(library, name);
  if (result) *result = *address ? FOUND : NOT_FOUND;
  return *address ? SUCCESS : NOT_SUPPORTED; /* who needs it says so */
}
EXPORT int cudaGetDriverEntryPoint(const char *name, void **address, unsigned long long flags, int *result) { (void)flags; return look_up(name, address, result); }
EXPORT int cudaGetDriverEntryPointByVersion(const char *name, void **address, unsigned version, unsigned long long flags, int *result) {
  (void)version, (void)flags;
  return look_up(name, address, result);
}
