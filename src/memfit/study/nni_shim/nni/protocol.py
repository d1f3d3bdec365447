"""`CommandType` and `send` where NNI 1 had them, for advisors written then."""

from .runtime.tuner_command_channel import CommandType

__all__ = ["CommandType", "send"]
receiver = None
"""Called with each message; memfit puts it here when the advisor is made."""


def send(command, data):
    """Send a new trial, the end of a trial, or that there are no more."""
    if receiver is None:
        raise RuntimeError("an advisor can send once it is made: in handle_initialize and later")
    receiver(command, data)
