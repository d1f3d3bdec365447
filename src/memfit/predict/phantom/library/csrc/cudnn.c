/* cuDNN: the real library chooses the plans, without a device.
 *
 * From 9.8 on, cuDNN has a documented mode in which heuristics, engines and plans are made for a device that is
 * described in JSON. Calls of the backend interface are handed on to the real library with that description set and
 * the handle withheld; only running a plan does nothing. Workspaces are therefore those of the real heuristics.
 * An older cuDNN reads the device's properties from the handle: it is given the one that cudnn_sizes.c makes. */
#define _GNU_SOURCE
#include "phantom.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cudnn.h>

#ifndef CAN_DO_WITHOUT_DEVICE /* a test builds it without, to compare both ways */
#define CAN_DO_WITHOUT_DEVICE (CUDNN_VERSION >= 90800)
#endif

typedef cudnnBackendDescriptor_t Descriptor;
static struct {
  cudnnStatus_t (*create)(cudnnBackendDescriptorType_t, Descriptor *);
  cudnnStatus_t (*destroy)(Descriptor);
  cudnnStatus_t (*finalize)(Descriptor);
  cudnnStatus_t (*set)(Descriptor, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t, const void *);
  cudnnStatus_t (*get)(Descriptor const, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t, int64_t *, void *);
} real;
static Descriptor device;
static void *parts[16];
static int has_interface, is_described;
static size_t num_plans;
static char folder[4096];
static pthread_once_t opened = PTHREAD_ONCE_INIT;

EXPORT void phantom_cudnn_folder(const char *path) { snprintf(folder, sizeof folder, "%s", path); }
EXPORT size_t phantom_cudnn_plans(void) { return num_plans; }

static const char *const PARTS[] = {
  "ops", "heuristic", "engines_precompiled", "engines_runtime_compiled", "engines_tensor_ir", "ext", "cnn", "adv", "graph",
};

enum { NUM_PARTS = sizeof PARTS / sizeof *PARTS };

/* Each part in a scope of its own, so that it keeps its private runtime and does not find ours. */
static void *open_parts(void) {
  char path[4200];
  for (size_t i = 0; i < NUM_PARTS; i++) {
    snprintf(path, sizeof path, "%s/libcudnn_%s.so.9", folder, PARTS[i]);
    parts[i] = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND);
  }
  return parts[NUM_PARTS - 1]; /* graph */
}

static int describe_device(char *text, size_t size) {
  return snprintf(text, size,
    "{\"cudaDeviceId\":0,\"deviceName\":\"%s\",\"deviceVer\":%d,\"driverVer\":%d,\"isTccDriver\":0,\"l2CacheSize\":%zu,"
    "\"maxCtasPerSM\":%d,\"maxRegistersPerSM\":65536,\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%zu,"
    "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":%d,\"memClockRateKHz\":1215000,\"multiProcessorCount\":%d,"
    "\"pciDeviceId\":0,\"regsPerBlock\":65536,\"reservedSharedMemoryPerBlock\":1024,\"smClockRateKHz\":1410000,"
    "\"smCountOrigin\":0,\"supportCoopLaunch\":1,\"totalGlobalMem\":%zu,\"warpSize\":32,"
    "\"maxBlockSize\":[1024,1024,64],\"maxGridSize\":[2147483647,65535,65535]}",
    gpu.name, gpu.major * 100 + gpu.minor * 10, CUDA_VERSION_NUMBER, (size_t)gpu.l2_bytes, gpu.blocks_per_processor,
    (size_t)gpu.shared_per_block_bytes, gpu.threads_per_processor, gpu.num_processors, (size_t)gpu.total_bytes);
}

static void open_real(void) {
  void *library = folder[0] ? open_parts() : NULL;
  if (!library) return;
  real.create = dlsym(library, "cudnnBackendCreateDescriptor");
  real.destroy = dlsym(library, "cudnnBackendDestroyDescriptor");
  real.finalize = dlsym(library, "cudnnBackendFinalize");
  real.set = dlsym(library, "cudnnBackendSetAttribute");
  real.get = dlsym(library, "cudnnBackendGetAttribute");
  has_interface = real.create && real.destroy && real.finalize && real.set && real.get;
#if CAN_DO_WITHOUT_DEVICE
  if (!has_interface) return;
  char text[2048];
  int length = describe_device(text, sizeof text);
  if (real.create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &device)) return;
  if (real.set(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, length + 1, text)) return;
  is_described = !real.finalize(device);
#endif
}
static int ready(void) {
  pthread_once(&opened, open_real);
  int is_ready = has_interface && (CAN_DO_WITHOUT_DEVICE ? is_described : cudnn_handle() != NULL);
  if (!is_ready) refuse("cuDNN plans (needs cuDNN 9.1 or newer and a GPU it supports)", 0);
  return is_ready;
}

/* A function of the real library, and the description of the device in its own layout; NULL where there is none. */
void *cudnn_function(const char *name) {
  void *found = NULL;
  pthread_once(&opened, open_real);
  for (size_t i = 0; i < NUM_PARTS && !found; i++) found = parts[i] ? dlsym(parts[i], name) : NULL;
  return found;
}
const void *cudnn_device(void) {
  pthread_once(&opened, open_real);
  return is_described ? device : NULL;
}

/* ---- what kind each descriptor is: the device is set on three of them ---------------------------------------- */

typedef struct { Descriptor descriptor; int kind; } Known;
static Known *known;
static size_t num_known, room_known;

static void remember(Descriptor descriptor, int kind) {
  pthread_mutex_lock(&lock);
  if (num_known == room_known) {
    room_known = room_known ? 2 * room_known : 256;
    known = realloc(known, room_known * sizeof *known);
    if (!known) abort();
  }
  known[num_known++] = (Known){descriptor, kind};
  pthread_mutex_unlock(&lock);
}
static int kind_of(Descriptor descriptor, int forget) { /* newest first: descriptors are short-lived */
  int kind = -1;
  pthread_mutex_lock(&lock);
  for (size_t i = num_known; i-- > 0 && kind < 0;)
    if (known[i].descriptor == descriptor) {
      kind = known[i].kind;
      if (forget) known[i] = known[--num_known];
    }
  pthread_mutex_unlock(&lock);
  return kind;
}

EXPORT cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind, Descriptor *descriptor) {
  if (!ready()) return CUDNN_STATUS_NOT_SUPPORTED;
  cudnnStatus_t status = real.create(kind, descriptor);
  if (!status) remember(*descriptor, kind);
  return status;
}
EXPORT cudnnStatus_t cudnnBackendDestroyDescriptor(Descriptor descriptor) {
  if (!ready()) return CUDNN_STATUS_SUCCESS;
  kind_of(descriptor, 1);
  return real.destroy(descriptor);
}
EXPORT cudnnStatus_t cudnnBackendSetAttribute(Descriptor descriptor, cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t count, const void *values) {
  if (!ready()) return CUDNN_STATUS_NOT_SUPPORTED;
  if (type != CUDNN_TYPE_HANDLE) return real.set(descriptor, name, type, count, values);
  void *handle = cudnn_handle();
  return CAN_DO_WITHOUT_DEVICE ? CUDNN_STATUS_SUCCESS : real.set(descriptor, name, type, 1, &handle);
}
EXPORT cudnnStatus_t cudnnBackendFinalize(Descriptor descriptor) {
  if (!ready()) return CUDNN_STATUS_NOT_SUPPORTED;
  int kind = kind_of(descriptor, 0);
  num_plans += kind == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR;
#if CAN_DO_WITHOUT_DEVICE
  int name = 0;
  switch (kind) {
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: name = CUDNN_ATTR_ENGINEHEUR_DEVICEPROP; break;
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR: name = CUDNN_ATTR_ENGINE_DEVICEPROP; break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: name = CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP; break;
    default: break;
  }
  if (name) {
    cudnnStatus_t status = real.set(descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &device);
    if (status) return status;
  }
#endif
  return real.finalize(descriptor);
}
EXPORT cudnnStatus_t cudnnBackendGetAttribute(Descriptor const descriptor, cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t wanted, int64_t *found, void *values) {
  return ready() ? real.get(descriptor, name, type, wanted, found, values) : CUDNN_STATUS_NOT_SUPPORTED;
}
EXPORT cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, Descriptor plan, Descriptor pack) {
  (void)handle, (void)plan, (void)pack;
  note_launch();
  return CUDNN_STATUS_SUCCESS;
}

/* ---- the older interface: handles and what is known without a device ------------------------------------------ */

EXPORT size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
EXPORT size_t cudnnGetCudartVersion(void) { return CUDA_VERSION_NUMBER; }
EXPORT cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int *value) {
  *value = type == MAJOR_VERSION ? CUDNN_MAJOR : type == MINOR_VERSION ? CUDNN_MINOR : CUDNN_PATCHLEVEL;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT const char *cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_NOT_SUPPORTED ? "the phantom GPU refuses this cuDNN call" : "an error of cuDNN on the phantom GPU";
}
EXPORT void cudnnGetLastErrorString(char *text, size_t size) { if (size) *text = 0; }
EXPORT cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) { *handle = new_handle(); return CUDNN_STATUS_SUCCESS; }
EXPORT cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream) { (void)handle; *stream = NULL; return CUDNN_STATUS_SUCCESS; }
