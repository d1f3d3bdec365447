"""The command line of NNI, served by memfit."""
