"""Every rank of a distributed training: which ranks there are, which are alike, and the prediction of each."""
