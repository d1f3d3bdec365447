/* cuBLAS and cuBLASLt: handles and queries; products themselves are generated stubs that succeed. */
#include "phantom.h"
#include <string.h>

#define MOST_WORKSPACES 64

/* cublasLtMatmulHeuristicResult_t, as in the public header */
typedef struct { uint64_t algorithm[8]; size_t workspace_bytes; int state; float waves; int reserved[4]; } Heuristic;

static uintptr_t workspaces[MOST_WORKSPACES];
static size_t num_workspaces;

EXPORT int cublasCreate_v2(void **handle) { *handle = new_handle(); return SUCCESS; }
EXPORT int cublasGetVersion_v2(void *handle, int *version) { (void)handle; *version = CUBLAS_VERSION_NUMBER; return SUCCESS; }
EXPORT int cublasGetMathMode(void *handle, int *mode) { (void)handle; *mode = 0; return SUCCESS; }
EXPORT int cublasGetPointerMode_v2(void *handle, int *mode) { (void)handle; *mode = 0; return SUCCESS; }
EXPORT int cublasGetStream_v2(void *handle, void **stream) { (void)handle; *stream = NULL; return SUCCESS; }
EXPORT int cublasGetSmCountTarget(void *handle, int *count) { (void)handle; *count = 0; return SUCCESS; }
EXPORT int cublasSetWorkspace_v2(void *handle, void *workspace, size_t size) {
  (void)handle, (void)size;
  for (size_t i = 0; i < num_workspaces; i++) if (workspaces[i] == (uintptr_t)workspace) return SUCCESS;
  if (workspace && num_workspaces < MOST_WORKSPACES) workspaces[num_workspaces++] = (uintptr_t)workspace;
  return SUCCESS;
}
EXPORT uintptr_t phantom_workspace(size_t index) { return index < num_workspaces ? workspaces[index] : 0; }

EXPORT size_t cublasLtGetVersion(void) { return CUBLAS_VERSION_NUMBER; }
EXPORT int cublasLtCreate(void **handle) { *handle = new_handle(); return SUCCESS; }
EXPORT int cublasLtMatmulDescCreate(void **description, int type, int scale) { (void)type, (void)scale; *description = new_handle(); return SUCCESS; }
EXPORT int cublasLtMatmulPreferenceCreate(void **preference) { *preference = new_handle(); return SUCCESS; }
EXPORT int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t stride) {
  (void)type, (void)rows, (void)columns, (void)stride;
  *layout = new_handle();
  return SUCCESS;
}
/* One algorithm without a workspace of its own: torch allocates what its preference says, not what this says. */
EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference,
                                          int wanted, Heuristic *results, int *found) {
  (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference, (void)wanted;
  memset(results, 0, sizeof *results);
  results->waves = 1;
  *found = 1;
  return SUCCESS;
}

/* ---- factorisations that say on the host whether their arguments were in order: they were ------------------------ */

#define FACTORED void *h, int m, int n, void *a, int lda, void *tau, int *outcome, int count
#define SOLVED void *h, int t, int n, int k, void *a, int lda, void *p, void *b, int ldb, int *outcome, int count
#define FITTED void *h, int t, int m, int n, int k, void *a, int lda, void *c, int ldc, int *outcome, void *each, int count
static int in_order(int *outcome) { *outcome = 0; return SUCCESS; }
EXPORT int cublasSgeqrfBatched(FACTORED) { return in_order(outcome); }
EXPORT int cublasDgeqrfBatched(FACTORED) { return in_order(outcome); }
EXPORT int cublasCgeqrfBatched(FACTORED) { return in_order(outcome); }
EXPORT int cublasZgeqrfBatched(FACTORED) { return in_order(outcome); }
EXPORT int cublasSgetrsBatched(SOLVED) { return in_order(outcome); }
EXPORT int cublasDgetrsBatched(SOLVED) { return in_order(outcome); }
EXPORT int cublasCgetrsBatched(SOLVED) { return in_order(outcome); }
EXPORT int cublasZgetrsBatched(SOLVED) { return in_order(outcome); }
EXPORT int cublasSgelsBatched(FITTED) { return in_order(outcome); }
EXPORT int cublasDgelsBatched(FITTED) { return in_order(outcome); }
EXPORT int cublasCgelsBatched(FITTED) { return in_order(outcome); }
EXPORT int cublasZgelsBatched(FITTED) { return in_order(outcome); }

/* ---- Fourier transforms ------------------------------------------------------------------------------------------ */

/* cuFFT's own planner needs a GPU. Its work area is torch's to allocate: taken as one copy of the complex data. */
static size_t complex_bytes(int type) {
  switch (type) {
    case 2: case 6: return 4; /* CUDA_R_16F, CUDA_C_16F */
    case 1: case 5: return 16; /* CUDA_R_64F, CUDA_C_64F */
    default: return 8;
  }
}
EXPORT int cufftCreate(int *handle) { *handle = 1; return SUCCESS; }
EXPORT int cufftXtMakePlanMany(int plan, int rank, long long *lengths, long long *from, long long from_stride,
                               long long from_distance, int from_type, long long *to, long long to_stride,
                               long long to_distance, int to_type, long long batch, size_t *work_bytes, int type) {
  (void)plan, (void)from, (void)from_stride, (void)from_distance, (void)from_type;
  (void)to, (void)to_stride, (void)to_distance, (void)to_type;
  size_t count = (size_t)batch;
  for (int i = 0; i < rank; i++) count *= (size_t)lengths[i];
  *work_bytes = count * complex_bytes(type);
  note_assumption("cuFFT's work area is one copy of the complex data; it may be none, or more for lengths with large primes");
  return SUCCESS;
}
EXPORT const char *cusparseGetErrorString(int status) { (void)status; return "the phantom GPU refuses cuSPARSE"; }
EXPORT const char *cusparseGetErrorName(int status) { (void)status; return "CUSPARSE_STATUS_NOT_SUPPORTED"; }
