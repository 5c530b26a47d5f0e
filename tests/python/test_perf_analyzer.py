"""The stock perf_analyzer drives the server over both wires with Poisson load and is content."""

import base64
import ctypes
import subprocess

import pytest

import perf_analyzer_binary
import repositories
from serving import Server

pytestmark = pytest.mark.skipif(
    not perf_analyzer_binary.is_supported(), reason="perf_analyzer exists for Linux on x86-64 only"
)

RUN_S = 120


@pytest.fixture(scope="module")
def perf_analyzer():
    return perf_analyzer_binary.prepare()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    repositories.copy_demo(repository, "digits")
    with Server(repository, "--shared-memory", "local") as server:
        yield server


@pytest.mark.parametrize("wire", ["http", "grpc"])
@pytest.mark.parametrize("rows, memory", [(1, "none"), (4, "none"), (4, "system")])
def test_poisson_load(perf_analyzer, server, wire, rows, memory):
    program, environment = perf_analyzer
    load = ["--async", "--request-distribution", "poisson", "--request-rate-range", "40"]
    # Short, and content with any spread between its windows: it shall run, its figures are not judged here.
    brief = ["--measurement-interval", "500", "--stability-percentage", "999", "--max-trials", "4"]
    command = [str(program), "-m", "digits", "-u", getattr(server, wire), "-i", wire, "-b", str(rows), *load, *brief]
    if memory != "none":
        command += ["--shared-memory", memory, "--output-shared-memory-size", "4096"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    assert "Throughput:" in done.stdout
    assert "Failed" not in done.stdout and "error" not in done.stderr.lower(), done.stderr


def test_base64_stands_in_for_libb64(perf_analyzer):
    program, _ = perf_analyzer
    library = ctypes.CDLL(str(program.with_name("libb64.so.0d")))
    for length in range(20):
        data = bytes(range(200, 200 + length))
        state, text = ctypes.create_string_buffer(12), ctypes.create_string_buffer(64)
        library.base64_init_encodestate(state)
        written = library.base64_encode_block(data, length, text, state)
        tail = ctypes.create_string_buffer(8)
        ending = library.base64_encode_blockend(tail, state)
        encoded = text.raw[:written] + tail.raw[:ending]
        assert encoded == base64.b64encode(data)
        state, back = ctypes.create_string_buffer(8), ctypes.create_string_buffer(64)
        library.base64_init_decodestate(state)
        length_back = library.base64_decode_block(encoded, len(encoded), back, state)
        assert back.raw[:length_back] == data
