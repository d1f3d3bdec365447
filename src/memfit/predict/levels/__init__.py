"""Timeline of tensors -> peak at every level, what would save how much, how far off it may be. Pure."""
