memfit predict job.py:make --set batch_size=4096 --device cuda:rtx3060-12gb
