"""The phantom GPU: a CUDA build of torch on a device that is only address space. See docs/phantom.md."""
