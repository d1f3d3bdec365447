/* Device memory: an account and an order of addresses.
 *
 * Addresses lie in one range that is reserved and never backed: touching it faults, which is what we want. The order
 * follows what real snapshots show of the Linux driver. Address space is taken in chunks of multiples of 32 MiB, each
 * new chunk below the last one (or at the upper end of the highest gap that an entirely freed chunk left); within the
 * chunks an allocation gets the lowest free range that fits. The caching allocator breaks ties by address, so this
 * order shows in what it reserves. */
#define _GNU_SOURCE
#include "phantom.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <driver_types.h>

#define SPAN ((size_t)8 << 40)
#define CHUNK (32 * MIB)
#define PAGE (2 * MIB)

Gpu gpu;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct { uintptr_t start; size_t size; } Range;
typedef struct { Range *items; size_t count, room; } Ranges; /* sorted by address */

static Ranges chunks, free_ranges, gaps, allocations, pinned;
static uintptr_t span_start, span_end, lowest_chunk;
static size_t used_bytes, peak_bytes;
typedef void (*Reader)(void *to, const void *from, size_t size, int was_sent);
static Reader reader;

EXPORT int phantom_describe(const Gpu *description) {
  gpu = *description;
  void *span = mmap(NULL, SPAN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (span == MAP_FAILED) return -1;
  span_start = (uintptr_t)span;
  span_end = span_start + SPAN;
  lowest_chunk = span_end / CHUNK * CHUNK - CHUNK;
  return 0;
}
EXPORT size_t phantom_used_bytes(void) { return used_bytes; }
EXPORT size_t phantom_peak_bytes(void) { return peak_bytes; }
/* Whoever knows values is asked at every copy out of the device; what it leaves untouched is zero. */
EXPORT void phantom_ask_at_reads(Reader asked) { reader = asked; }

/* ---- sorted lists of ranges --------------------------------------------------------------------------------- */

static size_t place_of(const Ranges *list, uintptr_t start) {
  size_t low = 0, high = list->count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (list->items[middle].start < start) low = middle + 1; else high = middle;
  }
  return low;
}

static void insert(Ranges *list, Range range) {
  if (list->count == list->room) {
    list->room = list->room ? 2 * list->room : 64;
    list->items = realloc(list->items, list->room * sizeof *list->items);
    if (!list->items) abort();
  }
  size_t at = place_of(list, range.start);
  memmove(list->items + at + 1, list->items + at, (list->count - at) * sizeof *list->items);
  list->items[at] = range;
  list->count++;
}

static void drop(Ranges *list, size_t at) {
  list->count--;
  memmove(list->items + at, list->items + at + 1, (list->count - at) * sizeof *list->items);
}

/* Insert, and join with neighbours that touch it, but not over a chunk's edge when `chunk` is given. */
static Range insert_joined(Ranges *list, Range range, const Range *chunk) {
  size_t at = place_of(list, range.start);
  if (at < list->count) {
    Range next = list->items[at];
    if (next.start == range.start + range.size && (!chunk || next.start < chunk->start + chunk->size))
      range.size += next.size, drop(list, at);
  }
  if (at > 0) {
    Range before = list->items[at - 1];
    if (before.start + before.size == range.start && (!chunk || before.start >= chunk->start))
      range.start = before.start, range.size += before.size, drop(list, at - 1);
  }
  insert(list, range);
  return range;
}

/* ---- the order of addresses --------------------------------------------------------------------------------- */

static uintptr_t new_chunk(size_t size) {
  uintptr_t start = 0;
  for (size_t i = gaps.count; i-- > 0 && !start;) {
    if (gaps.items[i].size < size) continue;
    gaps.items[i].size -= size;
    start = gaps.items[i].start + gaps.items[i].size;
    if (!gaps.items[i].size) drop(&gaps, i);
  }
  if (!start) start = lowest_chunk -= size;
  insert(&chunks, (Range){start, size});
  return start;
}

uintptr_t take_range(size_t size) {
  for (size_t i = 0; i < free_ranges.count; i++) {
    Range *found = &free_ranges.items[i];
    if (found->size < size) continue;
    uintptr_t start = found->start;
    found->start += size, found->size -= size;
    if (!found->size) drop(&free_ranges, i);
    return start;
  }
  size_t chunk_size = (size + CHUNK - 1) / CHUNK * CHUNK;
  uintptr_t start = new_chunk(chunk_size);
  if (chunk_size > size) insert(&free_ranges, (Range){start + size, chunk_size - size});
  return start;
}

void return_range(uintptr_t start, size_t size) {
  size_t at = place_of(&chunks, start + 1) - 1;
  Range chunk = chunks.items[at];
  Range joined = insert_joined(&free_ranges, (Range){start, size}, &chunk);
  if (joined.size < chunk.size) return;
  drop(&free_ranges, place_of(&free_ranges, joined.start));
  drop(&chunks, at);
  insert_joined(&gaps, chunk, NULL);
}

/* ---- the account -------------------------------------------------------------------------------------------- */

int take_memory(size_t num_bytes) {
  if (used_bytes + num_bytes + gpu.context_bytes > gpu.total_bytes) return 0;
  used_bytes += num_bytes;
  if (used_bytes > peak_bytes) peak_bytes = used_bytes;
  return 1;
}
void return_memory(size_t num_bytes) { used_bytes -= num_bytes; }
int is_on_device(const void *address) { return (uintptr_t)address >= span_start && (uintptr_t)address < span_end; }

EXPORT int cudaMalloc(void **address, size_t num_bytes) {
  size_t size = (num_bytes + PAGE - 1) / PAGE * PAGE;
  *address = NULL;
  if (!size) return SUCCESS;
  pthread_mutex_lock(&lock);
  int fits = take_memory(size);
  if (fits) {
    Range range = {take_range(size), size};
    insert(&allocations, range);
    *address = (void *)range.start;
  }
  pthread_mutex_unlock(&lock);
  return fits ? SUCCESS : runtime_error(OUT_OF_MEMORY);
}
EXPORT int cudaFree(void *address) {
  if (!address) return SUCCESS;
  pthread_mutex_lock(&lock);
  size_t at = place_of(&allocations, (uintptr_t)address);
  int known = at < allocations.count && allocations.items[at].start == (uintptr_t)address;
  if (known) {
    Range range = allocations.items[at];
    drop(&allocations, at);
    return_memory(range.size);
    return_range(range.start, range.size);
  }
  pthread_mutex_unlock(&lock);
  return known ? SUCCESS : runtime_error(INVALID_VALUE);
}
EXPORT int cudaMallocAsync(void **address, size_t size, void *stream) { (void)stream; return cudaMalloc(address, size); }
EXPORT int cudaFreeAsync(void *address, void *stream) { (void)stream; return cudaFree(address); }
EXPORT int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  size_t taken = used_bytes + gpu.context_bytes;
  *total_bytes = gpu.total_bytes;
  *free_bytes = taken < gpu.total_bytes ? gpu.total_bytes - taken : 0;
  return SUCCESS;
}

/* ---- pinned host memory is real ----------------------------------------------------------------------------- */

static void pin(void *address, size_t size) {
  pthread_mutex_lock(&lock);
  insert(&pinned, (Range){(uintptr_t)address, size});
  pthread_mutex_unlock(&lock);
}
static void unpin(void *address) {
  pthread_mutex_lock(&lock);
  size_t at = place_of(&pinned, (uintptr_t)address);
  if (at < pinned.count && pinned.items[at].start == (uintptr_t)address) drop(&pinned, at);
  pthread_mutex_unlock(&lock);
}
static int is_pinned(const void *address) {
  pthread_mutex_lock(&lock);
  size_t at = place_of(&pinned, (uintptr_t)address + 1);
  int inside = at > 0 && (uintptr_t)address - pinned.items[at - 1].start < pinned.items[at - 1].size;
  pthread_mutex_unlock(&lock);
  return inside;
}
EXPORT int cudaHostAlloc(void **address, size_t size, unsigned flags) {
  (void)flags;
  if (posix_memalign(address, 4096, size ? size : 1)) return runtime_error(OUT_OF_MEMORY);
  pin(*address, size);
  return SUCCESS;
}
EXPORT int cudaMallocHost(void **address, size_t size) { return cudaHostAlloc(address, size, 0); }
EXPORT int cudaFreeHost(void *address) { unpin(address); free(address); return SUCCESS; }
EXPORT int cudaHostRegister(void *address, size_t size, unsigned flags) { (void)flags; pin(address, size); return SUCCESS; }
EXPORT int cudaHostUnregister(void *address) { unpin(address); return SUCCESS; }
EXPORT int cudaHostGetDevicePointer(void **device, void *host, unsigned flags) { (void)flags; *device = host; return SUCCESS; }
EXPORT int cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *address) {
  memset(found, 0, sizeof *found);
  if (is_on_device(address)) {
    found->type = cudaMemoryTypeDevice, found->devicePointer = (void *)address;
  } else if (is_pinned(address)) {
    found->type = cudaMemoryTypeHost, found->hostPointer = found->devicePointer = (void *)address;
  } else {
    found->type = cudaMemoryTypeUnregistered, found->hostPointer = (void *)address, found->device = -2;
  }
  return SUCCESS;
}

/* ---- copies: into the device nothing, out of it what the reader knows, within the host for real --------------- */

/* The last small blocks that were sent to the device: torch's C++ sends numbers to other ranks and reads them back. */
enum { MOST_SENT = 64, LARGEST_SENT = 4096 };
static struct { uintptr_t start; size_t size; char bytes[LARGEST_SENT]; } sent[MOST_SENT];
static size_t next_sent;

static void remember_sent(uintptr_t to, const void *from, size_t size) {
  if (size > LARGEST_SENT) return;
  pthread_mutex_lock(&lock);
  size_t at = next_sent++ % MOST_SENT;
  sent[at].start = to, sent[at].size = size;
  memcpy(sent[at].bytes, from, size);
  pthread_mutex_unlock(&lock);
}
static int recall_sent(void *to, uintptr_t from, size_t size) {
  int found = 0;
  pthread_mutex_lock(&lock);
  for (size_t back = 1; back <= MOST_SENT && back <= next_sent && !found; back++) {
    size_t at = (next_sent - back) % MOST_SENT;
    if (sent[at].start != from || sent[at].size != size) continue;
    memcpy(to, sent[at].bytes, size);
    found = 1;
  }
  pthread_mutex_unlock(&lock);
  return found;
}
static void copy(void *to, const void *from, size_t size) {
  if (is_on_device(to)) {
    if (!is_on_device(from)) remember_sent((uintptr_t)to, from, size);
    return;
  }
  if (!is_on_device(from)) { memmove(to, from, size); return; }
  memset(to, 0, size);
  int was_sent = recall_sent(to, (uintptr_t)from, size);
  if (reader && size) reader(to, from, size, was_sent);
}
EXPORT int cudaMemcpy(void *to, const void *from, size_t size, int kind) { (void)kind; copy(to, from, size); return SUCCESS; }
EXPORT int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
  (void)stream;
  return cudaMemcpy(to, from, size, kind);
}
EXPORT int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                             int kind, void *stream) {
  (void)kind, (void)stream;
  for (size_t row = 0; row < height; row++) copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
  return SUCCESS;
}
EXPORT int cudaMemset(void *to, int value, size_t size) { if (!is_on_device(to)) memset(to, value, size); return SUCCESS; }
EXPORT int cudaMemsetAsync(void *to, int value, size_t size, void *stream) { (void)stream; return cudaMemset(to, value, size); }
