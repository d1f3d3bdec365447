memfit pipeline graph.txt --ranks 4 --memory 2GiB --link 12GB/s --micro-batches 8
