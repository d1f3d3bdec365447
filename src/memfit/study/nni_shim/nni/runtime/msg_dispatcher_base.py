"""The base class of custom advisors; memfit calls the handlers and receives what is sent."""

from ..recoverable import Recoverable
from .tuner_command_channel import CommandType

__all__ = ["CommandType", "MsgDispatcherBase"]


class MsgDispatcherBase(Recoverable):
    """Override the handlers of the messages that matter."""

    def __init__(self, command_channel_url=None):
        self.stopping = False

    def send(self, command, data):
        """Send a new trial, the end of a trial, or that there are no more; memfit puts its own receiver here."""
        raise RuntimeError("an advisor can send once it is made: in handle_initialize and later")

    def handle_initialize(self, data):
        """The search space, before anything else; answer with CommandType.Initialized."""
        raise NotImplementedError("handle_initialize not implemented")

    def handle_request_trial_jobs(self, data):
        """So many trials are wanted; answer each with CommandType.NewTrialJob."""
        raise NotImplementedError("handle_request_trial_jobs not implemented")

    def handle_update_search_space(self, data):
        """Another search space."""
        raise NotImplementedError("handle_update_search_space not implemented")

    def handle_import_data(self, data):
        """Trials that ended before this advisor was made: dicts with parameter and value."""
        raise NotImplementedError("handle_import_data not implemented")

    def handle_add_customized_trial(self, data):
        """A trial that the user added; memfit adds none."""
        raise NotImplementedError("handle_add_customized_trial not implemented")

    def handle_report_metric_data(self, data):
        """A trial reported a result."""
        raise NotImplementedError("handle_report_metric_data not implemented")

    def handle_trial_end(self, data):
        """A trial ended."""
        raise NotImplementedError("handle_trial_end not implemented")

    def handle_ping(self, data):
        """Nothing to do."""
