"""The base class of custom tuners."""

from . import NoMoreTrialError

__all__ = ["Tuner"]


class Tuner:
    """Override generate_parameters, receive_trial_result and update_search_space."""

    def generate_parameters(self, parameter_id, **kwargs):
        """The parameters of the next trial."""
        raise NotImplementedError("Tuner: generate_parameters not implemented")

    def generate_multiple_parameters(self, parameter_id_list, **kwargs):
        """Parameters for several trials, as many as there are."""
        found = []
        for parameter_id in parameter_id_list:
            try:
                found.append(self.generate_parameters(parameter_id, **kwargs))
            except NoMoreTrialError:
                break
        return found

    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        """A trial reported its final result."""
        raise NotImplementedError("Tuner: receive_trial_result not implemented")

    def trial_end(self, parameter_id, success, **kwargs):
        """A trial ended, well or not."""

    def update_search_space(self, search_space):
        """The search space, before the first trial."""
        raise NotImplementedError("Tuner: update_search_space not implemented")

    def import_data(self, data):
        """Trials of another study."""

    def load_checkpoint(self):
        """Nothing is kept in checkpoints: a study is resumed from its trials."""

    def save_checkpoint(self):
        """Nothing is kept in checkpoints: a study is resumed from its trials."""

    def accept_customized_trials(self, accept=True):
        """Whether results of parameters the user added are wanted too."""
        self._accept_customized = accept

    def _on_exit(self):
        """No more comes: the session of the study is over."""

    def _on_error(self):
        """No more comes: the class itself has raised."""
