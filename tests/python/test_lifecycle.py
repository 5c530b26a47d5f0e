"""From start to end: mistakes in a repository, loading and unloading, and the way down."""

import json
import signal
import socket
import threading
import time

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

import repositories
from repositories import Reference
from serving import Server, counted
from wires import Grpc, Http

# The gauge of requests that wait or run.
LIVE = "ripieno_live_requests"
X = np.arange(16, dtype=np.float32).reshape(1, 16)


def index(client):
    return {row["name"]: row for row in client.get_model_repository_index()}


def dense(wire, name="good"):
    return wire.infer(name, ["y"], [wire.input("x", X)])["y"]


def not_onnx(repository):
    repositories.write(repository, "bad", repositories.affine()).write_bytes(b"this is no model")
    return "model.onnx"


def cut_off(repository):
    path = repositories.write(repository, "bad", repositories.affine(outputs=64))
    path.write_bytes(path.read_bytes()[:200])
    return "model.onnx"


def unknown_key(repository):
    repositories.write(repository, "bad", repositories.affine(), "slo = 5\n")
    return "slo_ms"


def wrong_value(repository):
    repositories.write(repository, "bad", repositories.affine(), 'slo_ms = "fast"\n')
    return "slo_ms"


def no_toml(repository):
    repositories.write(repository, "bad", repositories.affine(), "slo_ms 5\n")
    return "model.toml"


def unknown_policy(repository):
    repositories.write(repository, "bad", repositories.affine(), 'policy = "no-such-policy"\n')
    return "no-such-policy"


def missing_file(repository):
    repositories.write(repository, "bad", repositories.affine()).unlink()
    return "model.onnx"


def no_version(repository):
    (repository / "bad").mkdir()
    return "bad"


MISTAKES = [
    not_onnx,
    cut_off,
    unknown_key,
    wrong_value,
    no_toml,
    unknown_policy,
    missing_file,
    no_version,
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_one_bad_model_is_named_and_the_others_serve(tmp_path, mistake):
    good = repositories.write(tmp_path, "good", repositories.affine())
    named = mistake(tmp_path)
    with Server(tmp_path) as server:
        wire = Http(server)
        row = index(wire.client)["bad"]
        assert row["state"] == "UNAVAILABLE" and "bad" in row["reason"] and named in row["reason"], row
        assert "\n" not in row["reason"], "one mistake, one line"
        assert not wire.client.is_model_ready("bad")
        with pytest.raises(InferenceServerException):
            dense(wire, "bad")
        np.testing.assert_allclose(dense(wire), Reference(good)(x=X)["y"], rtol=0, atol=1e-4)


def test_a_mistake_can_be_mended_while_others_serve(tmp_path):
    repositories.write(tmp_path, "good", repositories.affine())
    repositories.write(tmp_path, "bad", repositories.affine(seed=2), "slo = 5\n")
    with Server(tmp_path) as server:
        client = Http(server).client
        with pytest.raises(InferenceServerException, match="slo_ms"):
            client.load_model("bad")
        (tmp_path / "bad" / "model.toml").write_text(repositories.PATIENT)
        client.load_model("bad")
        assert client.is_model_ready("bad") and index(client)["bad"]["state"] == "READY"
        expected = Reference(tmp_path / "bad" / "1" / "model.onnx")(x=X)["y"]
        np.testing.assert_allclose(dense(Http(server), "bad"), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", [Http, Grpc])
def test_unload_and_load(tmp_path, kind):
    repositories.write(tmp_path, "good", repositories.affine())
    repositories.write(tmp_path, "other", repositories.affine(seed=2))
    with Server(tmp_path) as server:
        wire = kind(server)
        before = dense(wire)
        wire.client.unload_model("good")
        assert not wire.client.is_model_ready("good") and wire.client.is_model_ready("other")
        with pytest.raises(InferenceServerException):
            dense(wire)
        dense(wire, "other")
        wire.client.load_model("good")
        np.testing.assert_array_equal(dense(wire), before)
        with pytest.raises(InferenceServerException, match="no-such-model"):
            wire.client.load_model("no-such-model")


def test_the_highest_version_is_served_by_default(tmp_path):
    first = repositories.write(tmp_path, "good", repositories.affine(seed=1), version="1")
    second = tmp_path / "good" / "2"
    other = repositories.write(tmp_path, "spare", repositories.affine(seed=2))
    second.mkdir()
    (second / "model.onnx").write_bytes(other.read_bytes())
    assert first.exists()
    with Server(tmp_path) as server:
        np.testing.assert_allclose(dense(Http(server)), Reference(other)(x=X)["y"], rtol=0, atol=1e-4)


def test_a_single_file_is_a_repository(tmp_path):
    path = repositories.write(tmp_path, "good", repositories.affine())
    alone = tmp_path / "alone.onnx"
    alone.write_bytes(path.read_bytes())
    with Server(alone) as server:
        names = list(index(Http(server).client))
        assert names == ["alone"]
        np.testing.assert_allclose(dense(Http(server), "alone"), Reference(path)(x=X)["y"], rtol=0, atol=1e-4)


def test_the_ready_line_lists_the_models(tmp_path):
    repositories.write(tmp_path, "good", repositories.affine())
    with Server(tmp_path) as server:
        assert "good" in json.dumps(server.ready["models"])


def test_sigterm_answers_what_was_accepted(tmp_path):
    repositories.emulated(tmp_path, "slow", "slo_ms = 10000\nmax_batch = 1\nlatency_ms = [400]\n")
    answers = []
    with Server(tmp_path, *repositories.EMULATED) as server:
        host, port = server.http.split(":")
        connections = [ask(host, int(port)) for _ in range(3)]
        readers = [threading.Thread(target=lambda c=c: answers.append(read_all(c))) for c in connections]
        for reader in readers:
            reader.start()
        wait_until_counted(server, len(connections))
        server.terminate()
        for reader in readers:
            reader.join()
        assert server.stop() == 0
    assert [answer.split(b"\r\n")[0] for answer in answers] == [b"HTTP/1.1 200 OK"] * 3
    with pytest.raises(OSError):
        socket.create_connection((host, int(port)), timeout=1).close()


def ask(host, port):
    """Sends a request and leaves its answer to be read."""
    body = json.dumps({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]})
    head = "POST /v2/models/slow/infer HTTP/1.1\r\nHost: test\r\nConnection: close\r\n"
    connection = socket.create_connection((host, port), timeout=60)
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return connection


def read_all(connection):
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))


def wait_until_counted(server, requests):
    """Until the server has all of them: a request still in the kernel's buffer was never accepted."""
    for _ in range(10_000):
        if counted(server.scrape(), LIVE) >= requests:
            return
    raise AssertionError(f"the metric of live requests never reached {requests}")


def test_sighup_reads_the_repository_again(tmp_path):
    repositories.write(tmp_path, "good", repositories.affine())
    with Server(tmp_path) as server:
        repositories.write(tmp_path, "later", repositories.affine())
        server.process.send_signal(signal.SIGHUP)
        wire = Http(server)
        deadline = time.monotonic() + 120
        while index(wire.client).get("later", {}).get("state") != "READY":
            assert time.monotonic() < deadline and server.process.poll() is None, server.log_tail()
        np.testing.assert_array_equal(dense(wire, "later"), dense(wire, "good"))
