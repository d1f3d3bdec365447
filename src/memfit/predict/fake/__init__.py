"""Engine 1: the job runs on fake tensors; imports torch."""
