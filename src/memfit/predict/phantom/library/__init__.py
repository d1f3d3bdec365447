"""The stand-in for the CUDA libraries: its C sources, how they are built and loaded."""
