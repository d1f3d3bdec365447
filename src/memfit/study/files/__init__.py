"""Study files: memfit's own, and NNI's configurations."""
