"""The base class of custom assessors."""

from enum import Enum

__all__ = ["AssessResult", "Assessor"]


class AssessResult(Enum):
    """Whether a trial goes on."""

    Good = True
    Bad = False


class Assessor:
    """Override assess_trial."""

    def assess_trial(self, trial_job_id, trial_history):
        """Good to let the trial go on, Bad to stop it."""
        raise NotImplementedError("Assessor: assess_trial not implemented")

    def trial_end(self, trial_job_id, success):
        """A trial ended, well or not."""

    def load_checkpoint(self):
        """Nothing is kept in checkpoints: a study is resumed from its trials."""

    def save_checkpoint(self):
        """Nothing is kept in checkpoints: a study is resumed from its trials."""

    def _on_exit(self):
        """No more comes: the session of the study is over."""

    def _on_error(self):
        """No more comes: the class itself has raised."""
