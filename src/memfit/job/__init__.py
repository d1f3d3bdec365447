"""Jobs to be trained: description, loading of user code, built-in workloads and data sets."""
