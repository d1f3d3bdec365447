"""Predicts the memory of a training that is not run: a job and a device in, a Prediction out."""
