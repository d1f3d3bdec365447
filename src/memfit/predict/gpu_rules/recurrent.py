"""Reserve and workspace bytes of one recurrent cuDNN call; pure.

cuDNN publishes no formula. These were found by asking the library itself (9.24, on capabilities 7.5 to 9.0; the reserve
also in 9.10 and 9.20) over thousands of sizes, as the phantom GPU does for every call. The reserve is kept from forward
to backward: per place, layer and direction the gates, what they were made from, and the output that the next layer
reads; it is exact to the byte, dropout included, and within 0.2 % with a projection. The workspace lives as long as a
call: 8 MiB for each layer and direction that runs in a stream of its own, the weights, and the larger of what a forward
and a backward lay down per place. It is exact but for the number of steps that several layers of one direction are
worked on in (at most 7 % of it), for persistent kernels over few places (6 %) and for projections (11 %).

Torch asks for kernels that keep their weights on the chip where the state is small; they take up to four times as much
(read in torch 2.13, RNN.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memfit.units import MIB

Mode = Literal["rnn_relu", "rnn_tanh", "lstm", "gru"]
MODES: tuple[Mode, ...] = ("rnn_relu", "rnn_tanh", "lstm", "gru")
"""In the order of cuDNN's own numbers."""
GATES: dict[Mode, int] = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
KEPT: dict[Mode, int] = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 5, "gru": 6}
"""Values kept for the backward per hidden value of a place."""
WORKSPACE_BY_RULE = "cuDNN workspace (by rule)"
"""What a workspace of these rules is called in a timeline."""
HEADER_BYTES, ALIGNED_BYTES = 256, 32
STREAM_BYTES = 8 * MIB
THREAD_STATE_BYTES = 24
"""Of the generator that dropout keeps for every thread a GPU can run."""


FORWARD_VALUES: dict[Mode, int] = {"rnn_relu": 3, "rnn_tanh": 3, "lstm": 10, "gru": 5}
BACKWARD_VALUES: dict[Mode, int] = {"rnn_relu": 5, "rnn_tanh": 5, "lstm": 11, "gru": 5}
STATE_COPIES: dict[Mode, int] = {"rnn_relu": 2, "rnn_tanh": 2, "lstm": 4, "gru": 2}
"""Values per hidden value of a text, for each layer and direction; a packed batch needs no copies of its states."""
PERSISTENT_FORWARD_VALUES: dict[Mode, int] = {"rnn_relu": 4, "rnn_tanh": 4, "lstm": 8, "gru": 4}
PERSISTENT_BACKWARD: dict[Mode, int] = {"rnn_relu": 9, "rnn_tanh": 9, "lstm": 12, "gru": 14}
"""What kernels that keep their weights on the chip take more per hidden value of a place, backwards."""
LONGEST_GATES = 256
"""Steps whose gates are kept at once, of a single direction."""
LARGEST_STATE: dict[Mode, tuple[int, int]] = {
    "rnn_relu": (384, 256), "rnn_tanh": (384, 256), "lstm": (192, 128), "gru": (192, 128),
}  # fmt: skip
"""Up to which size of the state torch asks for such kernels, forwards and backwards."""
MANY_PROCESSORS, MANY_TEXTS, WIDE_STATE = 98, 128, 1024
STEPS_AT_ONCE = ((1, 32), (8, 16), (16, 8), (96, 4))
"""How many steps of several layers are worked on at once, for up to so many texts; two for more of them."""
LONG = 100
"""Texts longer than this are worked on in eight steps at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentCall:
    """One call: all layers and directions of a network over a batch."""

    mode: Mode
    places: int
    """Batch times length; of a packed batch, the sum of the lengths."""
    batch: int
    length: int
    """Of the longest text."""
    input_size: int
    hidden_size: int
    num_layers: int
    directions: int
    item_bytes: int
    projected_size: int = 0
    """Of an LSTM with a projection; 0 for none."""
    has_dropout: bool = False
    is_packed: bool = False
    is_training: bool = True
    is_persistent: bool = False
    """Whether its kernels keep their weights on the chip."""

    @property
    def num_masked(self) -> int:
        """Places that dropout draws for: all, also the padding of a packed batch."""
        return self.length * self.batch if self.is_packed else self.places


def is_persistent(
    call: RecurrentCall, *, is_backward: bool, is_fp16: bool, capability: tuple[int, int], num_processors: int
) -> bool:
    """Whether torch asks for kernels that keep their weights on the chip, and the library has them."""
    if call.projected_size or call.is_packed or (call.item_bytes != 4 and not is_fp16):
        return False
    if call.hidden_size <= LARGEST_STATE[call.mode][is_backward]:
        return True
    wide = call.hidden_size <= WIDE_STATE and not call.hidden_size % 128 and not call.input_size % 128
    if not is_fp16 or not wide or call.num_layers > 1 or call.directions > 1 or call.mode == "gru":
        return False
    if capability[0] < 8 or capability[1] == 6 or num_processors < MANY_PROCESSORS:
        return False
    fits = call.batch % 8 == 0 and call.batch <= MANY_TEXTS
    return fits and (call.mode == "lstm" or call.batch < 96 or call.hidden_size < 896)


def reserve_bytes(call: RecurrentCall) -> int:
    """What is kept from the forward to the backward."""
    between = call.num_layers - 1
    if call.projected_size:
        values = call.num_layers * (6 * call.hidden_size + call.projected_size) + between * call.hidden_size
    else:
        values = (KEPT[call.mode] * call.num_layers + between) * call.hidden_size
    kept = HEADER_BYTES + call.places * values * call.directions * call.item_bytes
    if call.has_dropout:  # one bit for each value that a layer hands to the next
        kept += between * call.num_masked * call.hidden_size * call.directions**2 // 8
    return -(-kept // ALIGNED_BYTES) * ALIGNED_BYTES


def dropout_state_bytes(num_processors: int, threads_per_processor: int) -> int:
    """The state of the generators, made by the first call with dropout and kept."""
    return num_processors * threads_per_processor * THREAD_STATE_BYTES


def workspace_bytes(call: RecurrentCall, capability: tuple[int, int]) -> int:
    """What a call takes while it runs."""
    one_stream = capability[0] == 8 and call.directions == 1 and call.num_layers > 1
    streams = 0 if one_stream else call.num_layers * call.directions
    values = max(_forward_values(call), _backward_values(call, capability) if call.is_training else 0)
    values += _values_of_projection(call) + _num_weights(call)
    lists_bytes = 0 if call.is_packed else 8 * call.batch
    return streams * STREAM_BYTES + values * call.item_bytes + lists_bytes + HEADER_BYTES


def _forward_values(call: RecurrentCall) -> int:
    """Gates of all places, and input and output in the library's order; both directions also join what they give."""
    gates, directions, hidden = GATES[call.mode], call.directions, call.places * call.hidden_size
    joined = 4 if directions == 2 else 0
    of_text = (PERSISTENT_FORWARD_VALUES if call.is_persistent else FORWARD_VALUES)[call.mode]
    if call.is_packed:
        of_text -= STATE_COPIES[call.mode]
    kept = call.places
    if directions == 1 and not call.is_persistent:
        kept = min(kept, LONGEST_GATES * call.batch)
    values = directions * gates * kept * call.hidden_size + joined * hidden
    if call.is_persistent:
        values += 4 * gates * hidden
        joined //= 2
    if call.has_dropout and directions == 1 and call.num_layers > 1:
        values += hidden
    if not call.is_packed:
        values += directions * hidden + call.places * call.input_size
    return values + (of_text * directions + joined) * _states(call)


def _backward_values(call: RecurrentCall, capability: tuple[int, int]) -> int:
    """Gradients of input, output and gates of all places."""
    directions, hidden, given = call.directions, call.places * call.hidden_size, call.places * call.input_size
    several = call.num_layers > 1
    of_text = BACKWARD_VALUES[call.mode] * directions
    if call.is_persistent:
        values = PERSISTENT_BACKWARD[call.mode] * hidden
        of_text += 1 if directions == 1 else 0
    else:
        values = 0
    if several and directions == 1 and not call.is_persistent:
        at_once = _steps_at_once(call, capability) * call.num_layers + _steps_held(call)
        values += 2 * hidden + min(call.places, at_once * call.batch) * call.hidden_size
    else:
        values += directions * (4 if several else 3) * hidden
    values += 2 * given + (4 if directions == 2 else 1) * max(hidden, given)
    if call.is_packed:
        values -= 2 * (directions * hidden + given)
        of_text -= 2 * STATE_COPIES[call.mode] * directions
    return values + (of_text + (4 if directions == 2 else 0)) * _states(call)


def _states(call: RecurrentCall) -> int:
    return call.num_layers * call.batch * call.hidden_size


def _steps_at_once(call: RecurrentCall, capability: tuple[int, int]) -> int:
    found = next((steps for most, steps in STEPS_AT_ONCE if call.batch <= most), 2)
    return max(found, 8) if call.length > LONG and capability[0] >= 8 else found


def _steps_held(call: RecurrentCall) -> int:
    return max(8, next((steps for most, steps in STEPS_AT_ONCE if call.batch <= most), 2))


def _values_of_projection(call: RecurrentCall) -> int:
    projected = call.projected_size
    if not projected:
        return 0
    states = 2 * call.num_layers * call.batch * (projected - call.hidden_size)
    return call.directions * (call.places * projected + states)


def _num_weights(call: RecurrentCall) -> int:
    given, directions = call.projected_size or call.hidden_size, call.directions
    inputs = call.input_size + (call.num_layers - 1) * given * directions
    weights = GATES[call.mode] * call.hidden_size * (inputs + call.num_layers * given)
    return directions * (weights + call.num_layers * call.projected_size * call.hidden_size)
