"""A pipeline cut carried out on a live model, by torch.distributed.pipelining."""
