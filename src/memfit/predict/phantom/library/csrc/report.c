/* What happened: refused calls, assumed answers, launches. Read by the Python side after the run. */
#include "phantom.h"
#include <stdio.h>
#include <string.h>

#define MOST_NAMES 256

static const char *refused[MOST_NAMES], *assumed[MOST_NAMES];
static size_t num_refused, num_assumed, num_launches;
static uintptr_t last_handle = 0x1000;

static int add_once(const char **names, size_t *count, const char *name) {
  int is_new = 1;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < *count; i++) is_new &= strcmp(names[i], name) != 0;
  if (is_new && *count < MOST_NAMES) names[(*count)++] = name;
  pthread_mutex_unlock(&lock);
  return is_new;
}

/* `name` is a literal of the generated stubs or of these files, so it may be kept. */
EXPORT long phantom_refuse(const char *name, long status) {
  if (add_once(refused, &num_refused, name)) fprintf(stderr, "phantom GPU: refused %s\n", name);
  return status;
}
long refuse(const char *name, long status) { return phantom_refuse(name, status); }
void note_assumption(const char *name) { add_once(assumed, &num_assumed, name); }
void note_launch(void) { __atomic_add_fetch(&num_launches, 1, __ATOMIC_RELAXED); }

EXPORT const char *phantom_refused(size_t index) { return index < num_refused ? refused[index] : NULL; }
EXPORT const char *phantom_assumed(size_t index) { return index < num_assumed ? assumed[index] : NULL; }
EXPORT size_t phantom_launches(void) { return num_launches; }

void *new_handle(void) { return (void *)__atomic_add_fetch(&last_handle, 16, __ATOMIC_RELAXED); }
EXPORT void *phantom_handle(void) { return new_handle(); }
