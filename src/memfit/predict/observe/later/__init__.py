"""What a job would still do where its run is ended: lines that ran, statements behind, calls that reach a model."""
