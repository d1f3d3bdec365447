/* The peak of the bytes that torch's CPU allocator (libc10.so) holds, counted from outside of torch.

Loaded with LD_PRELOAD: sees every posix_memalign whose caller is libc10.so, and the free of what it gave. What lies
in shared memory or in other libraries' buffers (numpy) does not pass here. The largest peak of any process is kept in
the file that ALLOCATOR_PEAK_FILE names (8 bytes); a forked process begins at zero. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SLOTS = 1 << 20 };
static void *const GONE = (void *)1;
static void *places[SLOTS];
static size_t sizes[SLOTS];
static long live_bytes, *peak_bytes;
static uintptr_t first, last; /* where libc10.so lies; 0 until it is loaded */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void begin_at_zero(void) {
    memset(places, 0, sizeof places);
    live_bytes = 0;
}

__attribute__((constructor)) static void open_peak(void) {
    const char *name = getenv("ALLOCATOR_PEAK_FILE");
    int file = name ? open(name, O_RDWR | O_CREAT, 0600) : -1;
    if (file < 0 || ftruncate(file, sizeof *peak_bytes)) return;
    void *shared = mmap(NULL, sizeof *peak_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared != MAP_FAILED) peak_bytes = shared;
    close(file);
    pthread_atfork(NULL, NULL, begin_at_zero);
}

static size_t slot_of(const void *place) { return ((uintptr_t)place >> 6) * 0x9E3779B97F4A7C15ull >> 44; }

static int find_c10(struct dl_phdr_info *library, size_t size, void *unused) {
    (void)size, (void)unused;
    if (!library->dlpi_name || !strstr(library->dlpi_name, "libc10.so")) return 0;
    uintptr_t low = UINTPTR_MAX, high = 0;
    for (int k = 0; k < library->dlpi_phnum; k++) {
        if (library->dlpi_phdr[k].p_type != PT_LOAD) continue;
        uintptr_t start = library->dlpi_addr + library->dlpi_phdr[k].p_vaddr;
        if (start < low) low = start;
        if (start + library->dlpi_phdr[k].p_memsz > high) high = start + library->dlpi_phdr[k].p_memsz;
    }
    last = high, first = low;
    return 1;
}

int posix_memalign(void **place, size_t alignment, size_t num_bytes) {
    static int (*original)(void **, size_t, size_t);
    if (!original) original = dlsym(RTLD_NEXT, "posix_memalign");
    uintptr_t caller = (uintptr_t)__builtin_return_address(0);
    int failed = original(place, alignment, num_bytes);
    if (!first) dl_iterate_phdr(find_c10, NULL);
    if (failed || !first || caller < first || caller >= last) return failed;
    pthread_mutex_lock(&lock);
    size_t slot = slot_of(*place);
    while (places[slot] && places[slot] != GONE) slot = (slot + 1) % SLOTS;
    places[slot] = *place, sizes[slot] = num_bytes, live_bytes += num_bytes;
    if (peak_bytes && live_bytes > *peak_bytes) *peak_bytes = live_bytes;
    pthread_mutex_unlock(&lock);
    return 0;
}

void free(void *place) {
    static void (*original)(void *);
    if (!original) original = dlsym(RTLD_NEXT, "free");
    if (place && first && !((uintptr_t)place & 63)) {
        pthread_mutex_lock(&lock);
        size_t slot = slot_of(place);
        while (places[slot] && places[slot] != place) slot = (slot + 1) % SLOTS;
        if (places[slot] == place) live_bytes -= sizes[slot], places[slot] = GONE;
        pthread_mutex_unlock(&lock);
    }
    original(place);
}
