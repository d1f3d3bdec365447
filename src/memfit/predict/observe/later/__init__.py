"""Search for what a job would still do where its run is ended: lines that ran, statements behind, calls of models."""
