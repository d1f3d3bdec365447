/* A processor that announces an instruction set and forbids it: preloaded (LD_PRELOAD), bf16 products of torch on the
 * CPU raise SIGILL unless ONEDNN_MAX_CPU_ISA is one of the values in LYING_PROCESSOR_HONEST (by default those without
 * AMX). Everything else is handed on to torch.
 *
 * The four kernels below are where every product of two matrices passes on its way to oneDNN or to torch's own loops;
 * their names are those of torch 2.13. All arguments are pointers, so C needs to know no class of torch.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define BFLOAT16 15 /* c10::ScalarType::BFloat16 */

static const char *WITHOUT_AMX = "AVX512_CORE_BF16,AVX512_CORE_VNNI,AVX512_CORE,AVX2_VNNI,AVX2,AVX,SSE41";

static void *in_torch(const char *name) {
  void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  void *found = library ? dlsym(library, name) : NULL;
  if (!found) abort();
  return found;
}

/* Asked once in a process, as oneDNN does. */
static int is_honest(void) {
  const char *chosen = getenv("ONEDNN_MAX_CPU_ISA"), *honest = getenv("LYING_PROCESSOR_HONEST");
  if (!chosen || !*chosen) return 0;
  size_t length = strlen(chosen);
  for (const char *at = honest ? honest : WITHOUT_AMX; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
    if (!strncmp(at, chosen, length) && (at[length] == ',' || !at[length])) return 1;
  return 0;
}

static void execute(const void *left, const void *right) {
  static signed char (*type_of)(const void *, const void *);
  static int honest = -1;
  if (!type_of) type_of = in_torch("_ZN2at6native11result_typeERKNS_6TensorES3_");
  if (type_of(left, right) != BFLOAT16) return;
  if (honest < 0) honest = is_honest();
  if (honest) return;
  signal(SIGILL, SIG_DFL);
  raise(SIGILL);
}

typedef void (*Four)(void *, const void *, const void *, const void *);
typedef void (*Seven)(void *, const void *, const void *, const void *, const void *, const void *, const void *);

#define PRODUCT_OF_FOUR(NAME)                                                                    \
  void NAME(void *self, const void *left, const void *right, const void *out) {                  \
    static Four next;                                                                            \
    if (!next) next = (Four)in_torch(#NAME);                                                     \
    execute(left, right);                                                                        \
    next(self, left, right, out);                                                                \
  }

#define PRODUCT_OF_SEVEN(NAME)                                                                   \
  void NAME(void *self, const void *bias, const void *left, const void *right, const void *beta, \
            const void *alpha, const void *out) {                                                \
    static Seven next;                                                                           \
    if (!next) next = (Seven)in_torch(#NAME);                                                    \
    execute(left, right);                                                                        \
    next(self, bias, left, right, beta, alpha, out);                                             \
  }

PRODUCT_OF_FOUR(_ZN2at6native21structured_mm_out_cpu4implERKNS_6TensorES4_S4_)
PRODUCT_OF_FOUR(_ZN2at6native22structured_bmm_out_cpu4implERKNS_6TensorES4_S4_)
PRODUCT_OF_SEVEN(_ZN2at6native24structured_addmm_out_cpu4implERKNS_6TensorES4_S4_RKN3c106ScalarES8_S4_)
PRODUCT_OF_SEVEN(_ZN2at6native26structured_baddbmm_out_cpu4implERKNS_6TensorES4_S4_RKN3c106ScalarES8_S4_)
