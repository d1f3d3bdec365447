"""One engine asks a tuner for points and an assessor when to stop; the registry knows both, and classes of the user."""
