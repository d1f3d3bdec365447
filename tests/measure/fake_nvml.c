/* A stand-in for libnvidia-ml.so.1 with the real symbols, struct layouts and return codes; its answers are set by the test.
 *
 * WITHOUT_V3      leave out the third version of the process list, as drivers before R510 do
 * WITHOUT_ENERGY  leave out the energy counter
 * LONG_ENTRIES    fill process entries of 32 bytes, as early R535 drivers do
 */
#include <stdio.h>
#include <string.h>

#define NUM_DEVICES 4
#define NUM_PROCESSES 64

typedef struct { unsigned int index; } *nvmlDevice_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
#ifdef LONG_ENTRIES
    unsigned long long usedGpuCcProtectedMemory;
#endif
} nvmlProcessInfo_t;

struct device {
    unsigned int index;
    int handle_code, name_code, memory_code, process_code, energy_code, power_code, mig_code;
    unsigned int mig, milliwatts, num_processes;
    unsigned long long total, used, millijoules;
    unsigned int pids[NUM_PROCESSES];
    unsigned long long bytes[NUM_PROCESSES];
};

static struct device devices[NUM_DEVICES];
static unsigned int num_devices;
static int init_code, count_code, num_inits;

/* ---- the test's side ---- */

void fake_reset(void) {
    memset(devices, 0, sizeof devices);
    for (unsigned int i = 0; i < NUM_DEVICES; i++) {
        devices[i].index = i;
        devices[i].mig_code = 3;
        devices[i].total = 80ull << 30;
        devices[i].used = (i + 1ull) << 30;
        devices[i].millijoules = 1000000ull * (i + 1);
    }
    num_devices = 1, init_code = count_code = num_inits = 0;
}
void fake_library(unsigned int devices_there, int init, int count) { num_devices = devices_there, init_code = init, count_code = count; }
void fake_codes(unsigned int i, int handle, int memory, int process, int energy, int power) {
    devices[i].handle_code = handle, devices[i].memory_code = memory, devices[i].process_code = process;
    devices[i].energy_code = energy, devices[i].power_code = power;
}
void fake_energy(unsigned int i, unsigned long long millijoules, unsigned int milliwatts) {
    devices[i].millijoules = millijoules, devices[i].milliwatts = milliwatts;
}
void fake_mig(unsigned int i) { devices[i].mig_code = 0, devices[i].mig = 1; }
void fake_process(unsigned int i, unsigned int pid, unsigned long long bytes) {
    unsigned int n = devices[i].num_processes++;
    devices[i].pids[n] = pid, devices[i].bytes[n] = bytes;
}
int fake_open_count(void) { return num_inits; }
int fake_entry_bytes(void) { return (int)sizeof(nvmlProcessInfo_t); }

/* ---- the library's side ---- */

int nvmlInit_v2(void) { return init_code ? init_code : (num_inits++, 0); }
int nvmlShutdown(void) { return num_inits > 0 ? (num_inits--, 0) : 1; }
int nvmlSystemGetDriverVersion(char *text, unsigned int length) { return snprintf(text, length, "999.01") < 0 ? 999 : 0; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = num_devices; return count_code; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int i, nvmlDevice_t *handle) {
    if (i >= num_devices) return 2;
    *handle = (nvmlDevice_t)&devices[i];
    return devices[i].handle_code;
}
int nvmlDeviceGetName(struct device *d, char *text, unsigned int length) { snprintf(text, length, "Simulated %u", d->index); return d->name_code; }
int nvmlDeviceGetMemoryInfo(struct device *d, nvmlMemory_t *memory) {
    if (d->memory_code) return d->memory_code;
    memory->total = d->total, memory->used = d->used, memory->free = d->total - d->used;
    return 0;
}
int nvmlDeviceGetMigMode(struct device *d, unsigned int *current, unsigned int *pending) { *current = *pending = d->mig; return d->mig_code; }
int nvmlDeviceGetPowerUsage(struct device *d, unsigned int *milliwatts) { *milliwatts = d->milliwatts; return d->power_code; }

#ifndef WITHOUT_ENERGY
int nvmlDeviceGetTotalEnergyConsumption(struct device *d, unsigned long long *millijoules) { *millijoules = d->millijoules; return d->energy_code; }
#endif

static int list_processes(struct device *d, unsigned int *count, nvmlProcessInfo_t *infos) {
    unsigned int room = *count;
    if (d->process_code) return d->process_code;
    *count = d->num_processes;
    if (room < d->num_processes) return 7;
    for (unsigned int n = 0; n < d->num_processes; n++) {
        memset(&infos[n], 0, sizeof infos[n]);
        infos[n].pid = d->pids[n], infos[n].usedGpuMemory = d->bytes[n];
        infos[n].gpuInstanceId = infos[n].computeInstanceId = 0xFFFFFFFFu;
    }
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v2(struct device *d, unsigned int *count, nvmlProcessInfo_t *infos) { return list_processes(d, count, infos); }
#ifndef WITHOUT_V3
int nvmlDeviceGetComputeRunningProcesses_v3(struct device *d, unsigned int *count, nvmlProcessInfo_t *infos) { return list_processes(d, count, infos); }
#endif
