"""The examples in clients/ for other languages, and the Rust one, each run as a user runs it against the demo model."""

import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import repositories
from serving import ROOT, TARGET, Server

CLIENTS = ROOT / "clients"
SAYS = "the drawing is a 0\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("languages")
    repositories.copy_demo(repository, "digits", "slo_ms = 20000\n")
    with Server(repository) as running:
        yield running


def run(*command, **environment):
    programs = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [*map(str, command)],
        cwd=ROOT,
        env={**os.environ, "PATH": programs, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def needs(program):
    beside = pathlib.Path(sys.executable).parent / program
    if not shutil.which(program) and not beside.exists():
        pytest.skip(f"{program} is not installed, so its example in clients/ was not run")


def test_curl(server):
    needs("curl")
    (logits,) = json.loads(run(CLIENTS / "curl" / "infer.sh", server.http))["outputs"]
    assert np.argmax(logits["data"]) == 0


def test_grpcurl(server):
    needs("grpcurl")
    (logits,) = json.loads(run(CLIENTS / "grpcurl" / "infer.sh", server.grpc))["rawOutputContents"]
    assert np.frombuffer(base64.b64decode(logits), "<f4").argmax() == 0


def test_node(server):
    needs("node")
    assert run("node", CLIENTS / "node" / "infer.mjs", server.http) == SAYS


def test_go(server, tmp_path):
    needs("go")
    folders = {"GOCACHE": str(tmp_path), "GOPATH": str(tmp_path / "path"), "GOFLAGS": "-mod=mod", "GO111MODULE": "off"}
    assert run("go", "run", CLIENTS / "go" / "main.go", server.http, **folders) == SAYS


def test_rust(server):
    # With all that the workspace builds, so that cargo settles on the same features and builds the example alone.
    build = ("cargo", "build", "--workspace", "--bins", "--tests", "--example", "infer_over_grpc")
    run(*build, CARGO_TARGET_DIR=str(TARGET))
    assert run(TARGET / "debug" / "examples" / "infer_over_grpc", f"http://{server.grpc}") == SAYS
