"""The base class of what NNI keeps checkpoints of; a study is resumed from its trials instead."""

import os


class Recoverable:
    """Tuners, assessors and advisors."""

    def load_checkpoint(self):
        """Nothing is kept in checkpoints."""

    def save_checkpoint(self):
        """Nothing is kept in checkpoints."""

    def get_checkpoint_path(self):
        """The folder that NNI names for checkpoints, where it is set."""
        folder = os.getenv("NNI_CHECKPOINT_DIRECTORY")
        return folder if folder and os.path.isdir(folder) else None
