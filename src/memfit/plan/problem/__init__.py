"""The planning problem and its arbiter: sizes, operations, transfers, simulated time and memory."""
