"""The command line: how a server is told to listen, what it says, and how it ends."""

import json
import os
import re
import subprocess
import urllib.error
import urllib.request

import numpy as np
import pytest

import repositories
from serving import BINARY, Server
from wires import Http

X = np.arange(16, dtype=np.float32).reshape(1, 16)
PORTS = ("--http", "localhost:0", "--grpc", "0", "--metrics", ":0")


def run(*arguments, **environment):
    """The exit code and what was printed: on stdout, on stderr."""
    command = [str(BINARY), *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment}, stdin=subprocess.DEVNULL
    )
    return done.returncode, done.stdout, done.stderr


def ready(server):
    try:
        with urllib.request.urlopen(f"http://{server.http}/v2/health/ready", timeout=60) as reply:
            return reply.status == 200
    except urllib.error.HTTPError as error:
        return error.code == 200


@pytest.fixture
def broken(tmp_path):
    repositories.write(tmp_path, "good", repositories.affine())
    repositories.write(tmp_path, "bad", repositories.affine(), "slo = 5\n")
    return tmp_path


def test_exit_codes_tell_of_models_that_cannot_be_served(broken, tmp_path_factory):
    code, table, error = run("models", broken)
    assert code == 1 and "did you mean slo_ms?" in table and "1 of 2 models cannot be served" in error
    code, _, error = run("serve", broken, *PORTS, "--exit-on-error")
    assert code == 1 and "1 of 2 models cannot be served" in error
    empty = tmp_path_factory.mktemp("empty")
    for command in (["models", empty], ["serve", empty, *PORTS, "--exit-on-error"]):
        code, _, error = run(*command)
        assert code == 1 and f"{empty} holds no models; put one at {empty}/NAME/1/model.onnx" in error, error


def test_a_server_is_ready_when_all_that_should_serve_do(broken):
    with Server(broken) as server:
        assert not ready(server)
        client = Http(server).client
        client.unload_model("bad")
        assert client.is_model_ready("good")
        (broken / "bad" / "model.toml").write_text(repositories.PATIENT)
        client.load_model("bad")
        assert ready(server)
        client.unload_model("bad")
        assert ready(server), "what was unloaded is not meant to serve"
    (broken / "bad" / "model.toml").write_text("slo = 5\n")
    with Server(broken, "--strict-readiness", "false") as server:
        assert ready(server)


def test_variables_stand_for_flags_and_logs_are_json_without_colours(broken, monkeypatch):
    for name, value in (("LOG_FORMAT", "json"), ("MAX_BODY_MIB", "1"), ("SERVER_NAME", "triton"), ("ALLOW_SYMLINKS", "yes")):
        monkeypatch.setenv(f"RIPIENO_{name}", value)
    with Server(broken) as server:
        with urllib.request.urlopen(f"http://{server.http}/v2", timeout=60) as reply:
            assert json.load(reply)["name"] == "triton"
        log = server.log_tail()
    events = [json.loads(line) for line in log.splitlines()]
    assert any(event["level"] == "ERROR" and "model bad: it is not served" in event["message"] for event in events), log
    code, _, error = run("serve", broken, RIPIENO_MAX_LIVE="many")
    assert code == 2 and "--max-live" in error


def test_text_logs_into_a_file_have_no_escape_codes(broken):
    with Server(broken) as server:
        log = server.log_tail()
    assert "ERROR" in log and "\x1b" not in log


@pytest.mark.parametrize("width", [16, 1000])
def test_the_line_to_try_infers(tmp_path, width):
    repositories.write(tmp_path / "repository", "dense net", repositories.affine(width=width))
    command = [str(BINARY), "serve", str(tmp_path / "repository"), *PORTS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            line = next(line for line in process.stdout if line.startswith("try "))
            shell = line.removeprefix("try").strip()
            tried = subprocess.run(shell, shell=True, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        finally:
            process.terminate()
            process.stdout.close()
    if width == 16:
        assert re.match(r"try +curl http://127.0.0.1:\d+/v2/models/dense%20net/infer -d", line)
        assert json.loads(tried.stdout)["outputs"][0]["shape"] == [1, 4], tried
    else:
        answer = (tmp_path / "answer.bin").read_bytes()
        assert "head -c 4000 /dev/zero | curl " in line and answer.startswith(b'{"model_name":"dense net"'), answer


def test_the_version_names_what_was_built():
    code, version, _ = run("--version")
    assert code == 0 and re.fullmatch(r"ripieno \d+\.\d+\.\d+ \(.+\)\n", version)


def test_completions_and_manual_are_printed():
    code, script, _ = run("completions", "bash")
    assert code == 0 and "migrate" in script and "--exit-on-error" in script
    code, page, _ = run("man")
    assert code == 0 and page.startswith(".ie") or ".TH ripieno" in page
