"""The scripts in clients/python, run as a user runs them."""

import importlib
import os
import subprocess
import sys

import pytest

import repositories
from serving import ROOT, Server

SCRIPTS = ROOT / "clients" / "python"
LIMIT_S = 120
EXPECTED_STREAM = "20 Nov 2026 -> 2026-11-20\n11/20/26 -> 2026-11-20\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("examples")
    for model in ("dates", "arithmetic", "sentiment"):
        settings = (repositories.DEMO / model / "model.toml").read_text()
        repositories.copy_demo(repository, model, settings.replace("slo_ms = 200.0", "slo_ms = 20000"))
    with Server(repository) as running:
        yield running


def run(script, url, *arguments):
    command = [sys.executable, str(SCRIPTS / script), "--url", url, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sequence(server):
    said = run(
        "sequence.py", server.http, "the soup was not very good", "although the room was dull, the host was nice"
    )
    assert [line.split(" -> ")[1].split()[0] for line in said.splitlines()] == ["negative", "positive"]


def test_tree(server):
    assert run("tree.py", server.http, "(3+4)*2", "9-(1+1)*8") == "(3+4)*2 = 4 (mod 10)\n9-(1+1)*8 = 3 (mod 10)\n"


def test_decode(server):
    said = run("decode.py", server.grpc, "20 Nov 2026", "the 3rd of May, 1999")
    assert said == "20 Nov 2026 -> 2026-11-20\nthe 3rd of May, 1999 -> 1999-05-03\n"


def test_stream_grpc(server):
    assert run("stream_grpc.py", server.grpc, "20 Nov 2026", "11/20/26") == EXPECTED_STREAM


def test_stream_sse(server):
    assert run("stream_sse.py", server.http, "20 Nov 2026", "11/20/26") == EXPECTED_STREAM


def test_each_step_is_an_event_of_its_own(server, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    stream_sse = importlib.import_module("stream_sse")
    tokens = [event["tokens"] for event in stream_sse.events(server.http, "20 Nov 2026")]
    assert tokens == [*b"2026-11-20", stream_sse.END]
