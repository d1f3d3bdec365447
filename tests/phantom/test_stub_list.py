"""Is every generated entry point reviewed, or refused by name? Needs no torch."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import MemfitError, MissingExtra, UsageError
from memfit.predict.devices.catalogue import (
    FILE_VARIABLE,
    PRODUCTS,
    described_gpu,
    properties_of,
    read_gpu_file,
    sources_of,
)
from memfit.predict.devices.parse import GPUS, parse_device
from memfit.predict.phantom.library import build
from memfit.predict.phantom.library.elf_symbols import undefined_symbols
from memfit.predict.phantom.library.installed import InstalledTorch
from memfit.predict.phantom.library.load import best_kernels
from memfit.predict.phantom.library.stub_list import needed, reviewed, stub_source, written_in_c

names = st.from_regex(r"(cuda|cublas|cudnn|cusparse|cusolver|cufft|cu)[A-Z][A-Za-z0-9_]{0,12}", fullmatch=True)


@given(names)
def test_a_name_that_nobody_reviewed_is_refused_by_its_name(name: str):
    if name not in reviewed():
        assert f'phantom_refuse("{name}"' in stub_source([name], reviewed())


def test_a_reviewed_name_does_what_the_list_says():
    source = stub_source(["cudaEventRecord", "cusolverDnCreate", "cudnnFindConvolutionForwardAlgorithmEx"], reviewed())
    assert "long cudaEventRecord(void) { return 0; }" in source
    assert "*handle = phantom_handle()" in source
    assert 'phantom_refuse("cudnnFindConvolutionForwardAlgorithmEx", 3000)' in source


@pytest.mark.parametrize(("name", "with_handle"), [("cudnnCreateRNNDescriptor", 0), ("cusolverDnSgeqrf_bufferSize", 1)])
def test_a_call_that_is_handed_on_says_its_name_and_whether_a_handle_is_put_in(name: str, with_handle: int):
    source = stub_source([name], reviewed())
    assert f"mov ${with_handle}, %r10d" in source
    assert "jmp phantom_hand_on" in source
    assert f'.string \\"{name}\\"' in source


def test_no_size_query_is_ever_simply_done():
    assert [n for n, action in reviewed().items() if action == "done" and ("Size" in n or "_bufferSize" in n)] == []


def test_a_handle_is_put_in_only_where_a_size_or_a_place_is_asked_for():
    asked = [name for name, action in reviewed().items() if action == "asked"]
    assert asked
    assert [name for name in asked if not name.endswith(("Size", "_bufferSize", "Size_v8", "WeightParams"))] == []


def test_nothing_written_in_c_is_also_generated():
    sources = Path(build.__file__).with_name("csrc")
    written = set().union(*(written_in_c((sources / part).read_text()) for part in build.PARTS))
    assert "cudaMalloc" in written
    assert "cudnnBackendFinalize" in written
    assert written & set(reviewed()) == set()


def test_names_of_other_libraries_stay_real():
    assert needed({"ncclAllReduce", "nvrtcCompileProgram", "cudaMalloc", "printf"}, "CUresult cuInit(int);") == {
        "cudaMalloc",
        "cuInit",
    }


def test_every_gpu_of_the_table_has_its_properties_and_says_where_they_are_from():
    assert set(PRODUCTS) == set(GPUS)
    for spec in GPUS.values():
        assert properties_of(spec).capability == spec.capability
        assert spec.source in sources_of(spec)
        assert spec.source
    assert "as asked for" in sources_of(parse_device("cuda:t4-16gb", "8GiB"))


GPU_FILE = """
product = "A card of ours"
capability = [8, 9]
num_processors = 22
l2 = "12 MiB"
bus_bits = 128
memory = "15 GiB"
"""


def test_a_gpu_of_the_users_own_is_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "gpu.toml").write_text(GPU_FILE)
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "gpu.toml"))
    device, gpu = described_gpu(parse_device("cuda"))
    assert (device.name, device.total_bytes, device.capability) == ("A card of ours", 15 * 2**30, (8, 9))
    assert (gpu.num_processors, gpu.l2_bytes, gpu.shared_per_block_bytes) == (22, 12 * 2**20, 99 * 1024)
    assert described_gpu(parse_device("cuda", "8GiB"))[0].total_bytes == 8 * 2**30
    assert described_gpu(parse_device("cuda:t4-16gb"))[1].product == "Tesla T4"


@pytest.mark.parametrize(
    ("before", "after"),
    [("22", '"many"'), ("[8, 9]", "[1, 2]"), ("12 MiB", "12 sheep"), ("product", "name"), ("=", "")],
)
def test_a_bad_gpu_file_is_a_usage_error_with_words(tmp_path: Path, before: str, after: str):
    (tmp_path / "gpu.toml").write_text(GPU_FILE.replace(before, after))
    with pytest.raises(UsageError) as error:
        read_gpu_file(tmp_path / "gpu.toml", parse_device("cuda"))
    assert error.value.hint


@pytest.mark.parametrize(
    ("capability", "kernels"), [((8, 9), 86), ((8, 0), 80), ((9, 0), 90), ((12, 0), 120), ((7, 0), 0), ((10, 0), 100)]
)
def test_the_kernels_that_would_run_are_the_newest_that_this_gpu_can(capability: tuple[int, int], kernels: int):
    assert best_kernels(["sm_75", "sm_80", "sm_86", "sm_90a", "sm_100", "sm_120"], capability) == kernels


def test_another_cuda_is_answered_clearly():
    torch = InstalledTorch(version="1.13.1", cuda="11.7", folder=Path(), include=(), cudnn_folder=None)
    with pytest.raises(MissingExtra, match=r"does not know CUDA 11\.7"):
        build.check_version(torch)


@given(st.binary(max_size=200))
def test_a_file_that_is_no_library_is_an_error_with_words(tmp_path_factory: pytest.TempPathFactory, content: bytes):
    path = tmp_path_factory.mktemp("elf") / "some.so"
    path.write_bytes(content)
    with pytest.raises(MemfitError, match="ELF"):
        undefined_symbols(path)


def test_undefined_symbols_are_read_from_a_hand_made_library(tmp_path: Path):
    strings = b"\0cudaMalloc\0defined\0"
    symbols = struct.pack("<IBBHQQ", 1, 0, 0, 0, 0, 0) + struct.pack("<IBBHQQ", 12, 0, 0, 7, 0, 0)
    at = 64 + 2 * 64
    sections = struct.pack("<IIQQQQIIQQ", 0, 11, 0, 0, at, len(symbols), 1, 0, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, at + len(symbols), len(strings), 0, 0, 1, 0)
    header = b"\x7fELF\x02\x01" + bytes(34) + struct.pack("<Q", 64) + bytes(10) + struct.pack("<HH", 64, 2) + bytes(2)
    path = tmp_path / "made.so"
    path.write_bytes(header + sections + symbols + strings)
    assert undefined_symbols(path) == {"cudaMalloc"}


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(MissingExtra, match="no C compiler") as error:
        build.compiler()
    assert "gcc" in error.value.hint
