"""The published study of hyperparameters: its tables, the trials run again, and its statements."""
