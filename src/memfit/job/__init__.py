"""What is trained: description of a job, loading of user code, built-in workloads and data sets."""
