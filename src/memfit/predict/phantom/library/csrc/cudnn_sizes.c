/* The older interface of cuDNN: recurrent networks, CTC, batch normalisation. The real library answers.
 *
 * Its questions about sizes read only the properties of the device, which stand at the beginning of a handle, in the same
 * layout as in a finished description of a device (compared in cuDNN 9.10, 9.20 and 9.24). So a handle is made by
 * copying them from the description, or by writing them; a size that follows from two of them is asked for first, as a check. */
#define _GNU_SOURCE
#include "phantom.h"
#include <malloc.h>
#include <stdint.h>
#include <string.h>
#include <cudnn.h>

enum { HANDLE_BYTES = 1 << 16, GENERATOR_BYTES = 48, FIRST_FAILED_RUN = 5000, LAST_FAILED_RUN = 5999 };
static const int32_t WIDEST_GRID = 2147483647; /* the first of the properties, as described in cudnn.c */

static _Alignas(16) char made[HANDLE_BYTES];
static int is_made;
static pthread_once_t tried = PTHREAD_ONCE_INIT;

/* The size of the generators of dropout follows from two of the properties. */
static int is_understood(void) {
  cudnnStatus_t (*ask)(void *, size_t *) = cudnn_function("cudnnDropoutGetStatesSize");
  size_t found = 0, expected = (size_t)gpu.num_processors * gpu.threads_per_processor / 2 * GENERATOR_BYTES;
  return ask && !ask(made, &found) && found == expected;
}

static void copy_from_description(const char *description) {
  size_t size = malloc_usable_size((void *)description), start = 0;
  while (start + 4 <= size && memcmp(description + start, &WIDEST_GRID, 4)) start += 4;
  if (start + 4 <= size) memcpy(made, description + start, size - start);
}

/* Without a description (before 9.8) they are written one by one, at the places where cudnnCreate keeps the answers of the
 * device (read in 9.1 and 9.5; the latter has the reserved shared memory as well). In 9.8 the plans are the same this way. */
enum { AT_MEMORY = 0x48, AT_CLOCKS = 0x50, AT_CACHE = 0x58, AT_VERSIONS = 0x60, RESERVED_SHARED = 1024 };

static void write_one_by_one(int has_reserved) {
  const int32_t clocks[] = {1410000, 1215000}, versions[] = {gpu.major * 100 + gpu.minor * 10, CUDA_VERSION_NUMBER};
  const int32_t first[] = {
    WIDEST_GRID, 65535, 65535, 1024, 1024, 64, 65536, gpu.num_processors, 32, 49152, (int32_t)gpu.shared_per_block_bytes,
  };
  const int32_t then[] = {RESERVED_SHARED, 65536, gpu.blocks_per_processor, gpu.threads_per_processor, 0, 0, 1};
  size_t left_out = has_reserved ? 0 : 1;
  memset(made, 0, sizeof made);
  memcpy(made, first, sizeof first);
  memcpy(made + sizeof first, then + left_out, sizeof then - left_out * sizeof *then);
  memcpy(made + AT_MEMORY, &gpu.total_bytes, 8);
  memcpy(made + AT_CLOCKS, clocks, sizeof clocks);
  memcpy(made + AT_CACHE, &gpu.l2_bytes, 4);
  memcpy(made + AT_VERSIONS, versions, sizeof versions);
  note_assumption("cuDNN older than 9.8 is asked with a handle of memfit's making: its engines that need cuBLASLt are missing");
}

static void make_handle(void) {
  const char *description = cudnn_device();
  if (description) copy_from_description(description);
  else write_one_by_one(0);
  is_made = is_understood();
  if (is_made || description) return;
  write_one_by_one(1);
  is_made = is_understood();
}
void *cudnn_handle(void) {
  pthread_once(&tried, make_handle);
  return is_made ? made : NULL;
}

/* ---- recurrent networks --------------------------------------------------------------------------------------- */

/* The sizes are written, and then the current device is asked for, which fails: that last step has no say in them. */
EXPORT cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t network, cudnnForwardMode_t mode,
                                               cudnnRNNDataDescriptor_t data, size_t *workspace, size_t *reserve) {
  (void)handle;
  cudnnStatus_t (*ask)(void *, void *, int, void *, size_t *, size_t *) = cudnn_function("cudnnGetRNNTempSpaceSizes");
  if (!ask || !cudnn_handle()) return refuse("cudnnGetRNNTempSpaceSizes", CUDNN_STATUS_NOT_SUPPORTED);
  size_t sizes[2] = {SIZE_MAX, SIZE_MAX};
  int status = ask(cudnn_handle(), network, mode, data, &sizes[0], &sizes[1]);
  if (status && (status < FIRST_FAILED_RUN || status > LAST_FAILED_RUN || sizes[0] == SIZE_MAX || sizes[1] == SIZE_MAX))
    return status;
  if (workspace) *workspace = sizes[0];
  if (reserve) *reserve = sizes[1];
  return CUDNN_STATUS_SUCCESS;
}
/* With generators, to restore is to set without filling them, which a kernel would do. */
static cudnnStatus_t set_dropout(cudnnDropoutDescriptor_t descriptor, float share, void *states, size_t size, unsigned long long seed) {
  const char *name = states ? "cudnnRestoreDropoutDescriptor" : "cudnnSetDropoutDescriptor";
  cudnnStatus_t (*set)(void *, void *, float, void *, size_t, unsigned long long) = cudnn_function(name);
  if (!set || !cudnn_handle()) return refuse(name, CUDNN_STATUS_NOT_SUPPORTED);
  return set(descriptor, cudnn_handle(), share, states, size, seed);
}
EXPORT cudnnStatus_t cudnnSetDropoutDescriptor(cudnnDropoutDescriptor_t descriptor, cudnnHandle_t handle, float share, void *states,
                                               size_t size, unsigned long long seed) {
  (void)handle;
  return set_dropout(descriptor, share, states, size, seed);
}
EXPORT cudnnStatus_t cudnnRestoreDropoutDescriptor(cudnnDropoutDescriptor_t descriptor, cudnnHandle_t handle, float share, void *states,
                                                   size_t size, unsigned long long seed) {
  (void)handle;
  return set_dropout(descriptor, share, states, size, seed);
}

/* ---- batch normalisation: none where the library cannot be asked, which is said --------------------------------- */

static cudnnStatus_t assume_none(size_t *size) {
  note_assumption("batch normalisation of cuDNN needs no workspace and no reserve");
  *size = 0;
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t h, cudnnBatchNormMode_t m, cudnnBatchNormOps_t o, const cudnnTensorDescriptor_t a, const cudnnTensorDescriptor_t b,
    const cudnnTensorDescriptor_t c, const cudnnTensorDescriptor_t d, const cudnnActivationDescriptor_t e, size_t *size) {
  typeof(&cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize) ask = cudnn_function(__func__);
  (void)h;
  return ask && cudnn_handle() ? ask(cudnn_handle(), m, o, a, b, c, d, e, size) : assume_none(size);
}
EXPORT cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t h, cudnnBatchNormMode_t m, cudnnBatchNormOps_t o, const cudnnTensorDescriptor_t a, const cudnnTensorDescriptor_t b,
    const cudnnTensorDescriptor_t c, const cudnnTensorDescriptor_t d, const cudnnTensorDescriptor_t e, const cudnnTensorDescriptor_t f,
    const cudnnActivationDescriptor_t g, size_t *size) {
  typeof(&cudnnGetBatchNormalizationBackwardExWorkspaceSize) ask = cudnn_function(__func__);
  (void)h;
  return ask && cudnn_handle() ? ask(cudnn_handle(), m, o, a, b, c, d, e, f, g, size) : assume_none(size);
}
EXPORT cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t h, cudnnBatchNormMode_t m, cudnnBatchNormOps_t o, const cudnnActivationDescriptor_t a, const cudnnTensorDescriptor_t x,
    size_t *size) {
  typeof(&cudnnGetBatchNormalizationTrainingExReserveSpaceSize) ask = cudnn_function(__func__);
  (void)h;
  return ask && cudnn_handle() ? ask(cudnn_handle(), m, o, a, x, size) : assume_none(size);
}
