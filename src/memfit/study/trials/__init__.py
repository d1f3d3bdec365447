"""One trial: order, process, reports, result; on this machine or on Dask."""
