"""`memfit replay`: a recorded CUDA memory snapshot, read safely and played again. Pure."""
