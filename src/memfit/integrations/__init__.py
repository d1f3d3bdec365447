"""Callbacks and plug-ins for other people's frameworks: Hugging Face Trainer, Lightning, pytest."""
