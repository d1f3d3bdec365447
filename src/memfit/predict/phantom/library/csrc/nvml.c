/* libnvidia-ml.so.1: there, and able to nothing. Expandable segments and NCCL look its functions up. */
enum { SUCCESS = 0, NOT_SUPPORTED = 3 };
#define REFUSES(name) int name(void) { return NOT_SUPPORTED; }

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) { (void)bus; *device = (void *)16; return SUCCESS; }
REFUSES(nvmlDeviceGetNvLinkRemoteDeviceType)
REFUSES(nvmlDeviceGetNvLinkRemotePciInfo_v2)
/* No other process uses this GPU. Asked when memory runs out. */
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *processes) {
  (void)device, (void)processes;
  *count = 0;
  return SUCCESS;
}
REFUSES(nvmlSystemGetCudaDriverVersion_v2)
REFUSES(nvmlDeviceGetGpuFabricInfoV)
