"""The user's live model: one training step, the module calls it makes, the stages they form; everything is put back."""
