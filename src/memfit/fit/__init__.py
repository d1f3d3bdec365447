"""The loop of `memfit fit`: plan, apply, prove, plan again; for a model, or for a training script while it runs."""
