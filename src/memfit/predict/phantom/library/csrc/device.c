/* What the device says of itself. */
#include "phantom.h"
#include <stdio.h>
#include <string.h>
#include <driver_types.h>

enum { SHARED_PER_BLOCK = 49152, REGISTERS = 65536, WARP = 32, MOST_THREADS = 1024, VIRTUAL_MEMORY_SUPPORTED = 102 };

static __thread int current_device, last_error;

int runtime_error(int status) { return last_error = status; }
EXPORT int cudaGetLastError(void) { int status = last_error; last_error = SUCCESS; return status; }
EXPORT int cudaPeekAtLastError(void) { return last_error; }
EXPORT const char *cudaGetErrorString(int status) {
  switch (status) {
    case SUCCESS: return "no error";
    case INVALID_VALUE: return "invalid argument";
    case OUT_OF_MEMORY: return "out of memory";
    case NO_SUCH_DEVICE: return "invalid device ordinal: the phantom machine has one GPU";
    case NOT_SUPPORTED: return "the phantom GPU refuses this call";
  }
  static __thread char text[64];
  snprintf(text, sizeof text, "error %d of the phantom GPU", status);
  return text;
}
EXPORT const char *cudaGetErrorName(int status) {
  return status == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation" : status == NOT_SUPPORTED ? "cudaErrorNotSupported" : "cudaError";
}

EXPORT int cudaGetDeviceCount(int *count) { *count = 1; return SUCCESS; }
EXPORT int cudaGetDevice(int *device) { *device = current_device; return SUCCESS; }
EXPORT int cudaSetDevice(int device) {
  if (device != 0) return runtime_error(NO_SUCH_DEVICE);
  current_device = device;
  return SUCCESS;
}
EXPORT int cudaDriverGetVersion(int *version) { *version = CUDA_VERSION_NUMBER; return SUCCESS; }
EXPORT int cudaRuntimeGetVersion(int *version) { *version = CUDA_VERSION_NUMBER; return SUCCESS; }

int attribute_value(int attribute) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: return MOST_THREADS;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX: return 2147483647;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock: return SHARED_PER_BLOCK;
    case cudaDevAttrTotalConstantMemory: return 65536;
    case cudaDevAttrWarpSize: return WARP;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: return REGISTERS;
    case cudaDevAttrClockRate: return 1410000;
    case cudaDevAttrMemoryClockRate: return 1215000;
    case cudaDevAttrMultiProcessorCount: return gpu.num_processors;
    case cudaDevAttrL2CacheSize: return (int)gpu.l2_bytes;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return gpu.threads_per_processor;
    case cudaDevAttrComputeCapabilityMajor: return gpu.major;
    case cudaDevAttrComputeCapabilityMinor: return gpu.minor;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return (int)gpu.shared_per_processor_bytes;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return (int)gpu.shared_per_block_bytes;
    case cudaDevAttrReservedSharedMemoryPerBlock: return 1024;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return gpu.blocks_per_processor;
    case cudaDevAttrGlobalMemoryBusWidth: return gpu.bus_bits;
    case cudaDevAttrTextureAlignment: return 512;
    case cudaDevAttrAsyncEngineCount: return 3;
    case cudaDevAttrUnifiedAddressing: case cudaDevAttrConcurrentKernels: case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrCooperativeLaunch: case cudaDevAttrMemoryPoolsSupported: case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrComputePreemptionSupported: case cudaDevAttrManagedMemory: case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrHostRegisterSupported: case VIRTUAL_MEMORY_SUPPORTED: return 1;
    default: return 0; /* a feature this device does not have */
  }
}
EXPORT int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  *value = attribute_value(attribute);
  return SUCCESS;
}

static int fill_properties(struct cudaDeviceProp *found) {
  memset(found, 0, sizeof *found);
  snprintf(found->name, sizeof found->name, "%s", gpu.name);
  memcpy(found->uuid.bytes, "memfit-phantom-0", 16);
  found->totalGlobalMem = gpu.total_bytes;
  found->sharedMemPerBlock = SHARED_PER_BLOCK;
  found->sharedMemPerBlockOptin = gpu.shared_per_block_bytes;
  found->sharedMemPerMultiprocessor = gpu.shared_per_processor_bytes;
  found->reservedSharedMemPerBlock = 1024;
  found->regsPerBlock = found->regsPerMultiprocessor = REGISTERS;
  found->warpSize = WARP;
  found->memPitch = 2147483647;
  found->maxThreadsPerBlock = found->maxThreadsDim[0] = found->maxThreadsDim[1] = MOST_THREADS;
  found->maxThreadsDim[2] = 64;
  found->maxGridSize[0] = 2147483647;
  found->maxGridSize[1] = found->maxGridSize[2] = 65535;
  found->maxThreadsPerMultiProcessor = gpu.threads_per_processor;
  found->maxBlocksPerMultiProcessor = gpu.blocks_per_processor;
  found->totalConstMem = 65536;
  found->major = gpu.major, found->minor = gpu.minor;
  found->multiProcessorCount = gpu.num_processors;
  found->l2CacheSize = (int)gpu.l2_bytes;
  found->memoryBusWidth = gpu.bus_bits;
  found->textureAlignment = 512, found->texturePitchAlignment = 32;
  found->pciBusID = 1, found->asyncEngineCount = 3;
  found->canMapHostMemory = found->concurrentKernels = found->unifiedAddressing = 1;
  found->streamPrioritiesSupported = found->globalL1CacheSupported = found->localL1CacheSupported = 1;
  found->managedMemory = found->concurrentManagedAccess = found->computePreemptionSupported = 1;
  found->cooperativeLaunch = found->hostRegisterSupported = found->memoryPoolsSupported = 1;
  return SUCCESS;
}
#if CUDA_VERSION_NUMBER >= 13000
EXPORT int cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) { (void)device; return fill_properties(found); }
#else /* the name without a number is of another layout there, and refused */
EXPORT int cudaGetDeviceProperties_v2(struct cudaDeviceProp *found, int device) { (void)device; return fill_properties(found); }
#endif
EXPORT int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return SUCCESS;
}
EXPORT int cudaDeviceCanAccessPeer(int *can, int device, int peer) { (void)device, (void)peer; *can = 0; return SUCCESS; }
EXPORT int cudaDeviceGetPCIBusId(char *text, int size, int device) { (void)device; snprintf(text, size, "0000:01:00.0"); return SUCCESS; }
EXPORT int cudaDeviceGetDefaultMemPool(void **pool, int device) { (void)device; *pool = new_handle(); return SUCCESS; }
