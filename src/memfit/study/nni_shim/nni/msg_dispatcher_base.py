"""The base class of advisors where NNI 1 had it; metrics are then plain values, as they were there."""

from .runtime.msg_dispatcher_base import MsgDispatcherBase as _Base


class MsgDispatcherBase(_Base):
    """Override the handlers of the messages that matter."""

    values_are_json = False
