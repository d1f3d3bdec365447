"""What was never written to has no pages: is that seen, and does it reach the process level?"""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.predict.levels.cpu import process_level
from memfit.predict.observe.storage_log import ProbeResult
from memfit.units import MIB

SEEING = """
import mmap
from ctypes import addressof, c_char
from memfit.predict.fake.probe.touched_pages import touched_bytes

block = mmap.mmap(-1, 8 * 1024**2)
address = addressof(c_char.from_buffer(block))
seen = [touched_bytes(address, len(block))]
block[: 2 * 1024**2] = bytes(2 * 1024**2)
seen.append(touched_bytes(address, len(block)))
print(*seen)
"""

WORKSPACE = """
import json, torch
from memfit.predict.fake.probe.process import probe
from memfit.predict.fake.probe.signatures import Signatures
from memfit.predict.fake.probe.touched_pages import pin_mmap_threshold

pin_mmap_threshold()
torch.set_num_threads(1)
signatures = Signatures()
layer = torch.nn.LSTM(256, 256)
args = (torch.ones(64, 8, 256), *layer.parameters(), *(torch.zeros(1, 8, 256) for _ in range(2)))
args = (*args, False, [], 2, 256, 1, True, False, False, True)
signatures.sign(torch.ops.aten.mkldnn_rnn_layer.default, args, {})
signatures.sign(torch.ops.aten.native_layer_norm.default, (torch.ones(1024, 1024), [1024], None, None, 1e-5), {})
print(json.dumps([probe(text) for text in signatures.texts]))
"""


def printed(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=150
    ).stdout.splitlines()[-1]


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's page tables")
def test_only_written_pages_count():
    before, after = map(int, printed(SEEING).split())
    assert before == 0
    assert 2 * MIB <= after < 8 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's page tables")
def test_a_probe_sees_that_a_recurrent_workspace_is_not_all_written_to_and_that_other_results_are():
    import json

    pytest.importorskip("torch")
    layer, norm = json.loads(printed(WORKSPACE))
    assert layer["touched_bytes"][0] == layer["output_bytes"][0]
    assert layer["touched_bytes"][3] < 0.7 * layer["output_bytes"][3]
    assert norm["touched_bytes"] == norm["output_bytes"]


sizes = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=5)


@given(sizes, st.integers(0, 10**9), st.integers(0, 10**9))
def test_counting_only_what_is_written_never_adds_to_the_results(pairs, inside, filled):
    asked, touched = tuple(max(pair) for pair in pairs), tuple(min(pair) for pair in pairs)
    result = ProbeResult(
        inside_bytes=sum(asked) + inside, output_bytes=asked, touched_bytes=touched, filled_bytes=filled
    )
    counted = result.as_touched()
    assert counted.output_bytes == touched
    assert counted.inside_bytes == sum(touched) + inside + filled
    assert counted.is_touched


@given(st.integers(1, 2**36), st.floats(0, 1), st.booleans())
def test_untouched_memory_lowers_the_process_and_never_widens_a_point(tensors, share, pinned):
    untouched = int(tensors * share)
    with_it = process_level(tensors, 300 * MIB, pinned=pinned, untouched_bytes=untouched).figure
    without = process_level(tensors, 300 * MIB, pinned=pinned).figure
    assert with_it.low is not None
    assert without.low is not None
    assert with_it.low <= without.low
    if pinned:
        assert with_it.value == process_level(tensors - untouched, 300 * MIB, pinned=True).figure.value
    else:
        assert with_it.high == without.high
