/* Handing calls on to the real library: as they are, or with a handle of our own making in the first argument's place.
 *
 * Generated entry points (see stub_list.py) jump here with their name. Only functions that compute on the host come this
 * way: descriptors, and questions about sizes. The handle is memory that begins with the properties of the described GPU,
 * which is all that those functions read of it. */
#define _GNU_SOURCE
#include "phantom.h"
#include <dlfcn.h>
#include <string.h>

/* ---- cuSOLVER: a handle with a mark that it was made, and the device beside it --------------------------------- */

#if CUDA_VERSION_NUMBER >= 13000
#define SOLVER "libcusolver.so.12"
#else
#define SOLVER "libcusolver.so.11"
#endif
enum { HANDLE_BYTES = 4096, SEARCHED_BYTES = 256, BEFORE_MARK_VERSION = 0x20, BEFORE_MARK_SHARED = 0x10 };

static int32_t solver_handle[HANDLE_BYTES / 4];
static void *solver;
static int solver_is_ready;
static pthread_once_t solver_opened = PTHREAD_ONCE_INIT;

/* The mark is looked for, because its place is nobody's promise: without it every question is answered with an error. */
static void open_solver(void) {
  int (*ask)(void *, int, int, void *, int, int *);
  solver = dlopen(SOLVER, RTLD_LAZY | RTLD_NOLOAD); /* who calls it was linked to it */
  if (!solver || !(ask = dlsym(solver, "cusolverDnSgeqrf_bufferSize"))) return;
  int size = 0;
  for (size_t at = BEFORE_MARK_VERSION / 4; at < SEARCHED_BYTES / 4 && !solver_is_ready; at++) {
    memset(solver_handle, 0, sizeof solver_handle);
    solver_handle[at] = 1;
    solver_handle[at - BEFORE_MARK_VERSION / 4] = gpu.major * 100 + gpu.minor * 10;
    solver_handle[at - BEFORE_MARK_SHARED / 4] = (int32_t)gpu.shared_per_block_bytes;
    solver_is_ready = ask(solver_handle, 64, 64, NULL, 64, &size) == SUCCESS && size > 0;
  }
}

/* ---- by name -------------------------------------------------------------------------------------------------- */

typedef struct { void *function, *handle; } Real;

static long refused_by_cudnn(void) { return 3000; }
static long refused_by_cusolver(void) { return 9; }

static Real find(const char *name, int with_handle) {
  if (!strncmp(name, "cudnn", 5)) return (Real){cudnn_function(name), with_handle ? cudnn_handle() : NULL};
  pthread_once(&solver_opened, open_solver);
  return (Real){solver_is_ready ? dlsym(solver, name) : NULL, with_handle ? solver_handle : NULL};
}
Real phantom_real(const char *name, int with_handle) {
  Real real = find(name, with_handle);
  if (real.function && (real.handle || !with_handle)) return real;
  refuse(name, 0);
  return (Real){strncmp(name, "cudnn", 5) ? (void *)refused_by_cusolver : (void *)refused_by_cudnn, NULL};
}

/* r11 is the name, r10 whether a handle is put in. All arguments are as the caller left them when the real one begins. */
__asm__(
  ".text\n"
  ".globl phantom_hand_on\n"
  ".hidden phantom_hand_on\n"
  ".type phantom_hand_on, @function\n"
  "phantom_hand_on:\n"
  "  push %rbp\n"
  "  mov %rsp, %rbp\n"
  "  push %rdi\n  push %rsi\n  push %rdx\n  push %rcx\n  push %r8\n  push %r9\n"
  "  sub $128, %rsp\n"
  "  movups %xmm0, (%rsp)\n  movups %xmm1, 16(%rsp)\n  movups %xmm2, 32(%rsp)\n  movups %xmm3, 48(%rsp)\n"
  "  movups %xmm4, 64(%rsp)\n  movups %xmm5, 80(%rsp)\n  movups %xmm6, 96(%rsp)\n  movups %xmm7, 112(%rsp)\n"
  "  mov %r11, %rdi\n"
  "  mov %r10d, %esi\n"
  "  call phantom_real\n"
  "  mov %rax, %r11\n"
  "  test %rdx, %rdx\n"
  "  je 1f\n"
  "  mov %rdx, -8(%rbp)\n"
  "1:\n"
  "  movups (%rsp), %xmm0\n  movups 16(%rsp), %xmm1\n  movups 32(%rsp), %xmm2\n  movups 48(%rsp), %xmm3\n"
  "  movups 64(%rsp), %xmm4\n  movups 80(%rsp), %xmm5\n  movups 96(%rsp), %xmm6\n  movups 112(%rsp), %xmm7\n"
  "  add $128, %rsp\n"
  "  pop %r9\n  pop %r8\n  pop %rcx\n  pop %rdx\n  pop %rsi\n  pop %rdi\n"
  "  pop %rbp\n"
  "  jmp *%r11\n");
