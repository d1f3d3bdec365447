/* Counts the bytes that torch's CPU allocator holds, from below: preloaded, it stands between libc10 and libc.

   c10::alloc_cpu takes all memory of tensors by posix_memalign and gives it back by free (read in torch 2.13). Calls
   that come from libc10.so are added up; every other caller is passed on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NUM_PLACES (1u << 20)
#define GONE ((void *)1)

static void *blocks[NUM_PLACES];
static size_t sizes[NUM_PLACES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long live_bytes, peak_bytes;
static uintptr_t c10_begin, c10_end;
static int (*real_memalign)(void **, size_t, size_t);
static void (*real_free)(void *);

static size_t place_of(void *block) { return (((uintptr_t)block >> 6) * 0x9E3779B97F4A7C15ull >> 40) % NUM_PLACES; }

static int find_c10(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size, (void)unused;
    if (!info->dlpi_name || !strstr(info->dlpi_name, "libc10.so")) return 0;
    uintptr_t begin = UINTPTR_MAX, end = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
        uintptr_t from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, to = from + info->dlpi_phdr[i].p_memsz;
        if (from < begin) begin = from;
        if (to > end) end = to;
    }
    c10_end = end, c10_begin = begin;
    return 1;
}

static void add(void *block, size_t size) {
    pthread_mutex_lock(&lock);
    size_t at = place_of(block);
    while (blocks[at] && blocks[at] != GONE) at = (at + 1) % NUM_PLACES;
    blocks[at] = block, sizes[at] = size;
    live_bytes += size;
    if (live_bytes > peak_bytes) peak_bytes = live_bytes;
    pthread_mutex_unlock(&lock);
}

static void take_away(void *block) {
    pthread_mutex_lock(&lock);
    size_t at = place_of(block);
    while (blocks[at] && blocks[at] != block) at = (at + 1) % NUM_PLACES;
    if (blocks[at] == block) {
        live_bytes -= sizes[at];
        blocks[at] = blocks[(at + 1) % NUM_PLACES] ? GONE : NULL;
    }
    pthread_mutex_unlock(&lock);
}

int posix_memalign(void **block, size_t alignment, size_t size) {
    if (!real_memalign) real_memalign = dlsym(RTLD_NEXT, "posix_memalign");
    int failed = real_memalign(block, alignment, size);
    uintptr_t caller = (uintptr_t)__builtin_return_address(0);
    if (!c10_begin) dl_iterate_phdr(find_c10, NULL);
    if (!failed && c10_begin && caller >= c10_begin && caller < c10_end) add(*block, size);
    return failed;
}

void free(void *block) {
    if (!real_free) real_free = dlsym(RTLD_NEXT, "free");
    if (block && c10_begin && !((uintptr_t)block & 63)) take_away(block);
    real_free(block);
}

long counted_live(void) { return live_bytes; }
long counted_peak(void) { return peak_bytes; }
void counted_reset(void) { peak_bytes = live_bytes; }
