"""Deadlines: the client's timeout and the model's SLO end a request in time, even while the device is busy.

The device is emulated and slow, so that what is early and what is late lies hundreds of milliseconds apart and no
loaded machine blurs it. That expiry is within milliseconds is tested in Rust, where no client's clock is in the way.
"""

import json
import socket
import threading
import time

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

import repositories
from serving import Server
from wires import Grpc, Http

X = np.array([[1.0, 2.0]], np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    # One request at a time, 600 ms each.
    busy = "max_batch = 1\nlatency_ms = [600]\n"
    repositories.emulated(repository, "strict", f"slo_ms = 10000\n{busy}")
    repositories.emulated(repository, "short", f"slo_ms = 900\n{busy}")
    repositories.emulated(repository, "late", f'slo_ms = 100\nlate = "answer"\n{busy}')
    with Server(repository, *repositories.EMULATED) as server:
        yield server


@pytest.fixture(params=[Http, Grpc])
def wire(request, server):
    return request.param(server)


def infer(wire, model, **options):
    return wire.infer(model, ["y"], [wire.input("x", X)], **options)["y"]


def is_deadline_exceeded(error):
    return error.status() in ("504", "StatusCode.DEADLINE_EXCEEDED")


def timed_failure(wire, model, **options):
    """Seconds until the request fails by its deadline."""
    begun = time.monotonic()
    with pytest.raises(InferenceServerException) as caught:
        infer(wire, model, **options)
    assert is_deadline_exceeded(caught.value), caught.value
    assert "timeout expired" in caught.value.message() and "(the request's own timeout)" in caught.value.message()
    return time.monotonic() - begun


def test_a_request_within_its_deadline_is_answered(wire):
    np.testing.assert_array_equal(infer(wire, "strict"), X)


def test_the_timeout_parameter_is_in_microseconds(wire):
    assert timed_failure(wire, "strict", timeout=50_000) < 0.5


def test_a_busy_device_does_not_hold_up_an_expiry(server, wire):
    other = Http(server)
    occupying = threading.Thread(target=infer, args=(other, "strict"))
    occupying.start()
    # On an idle device one of these would be done in time. Whichever the device takes first, no two are done in 1 s.
    with_deadline = []

    def ask():
        try:
            infer(type(wire)(server), "strict", timeout=1_000_000)
        except InferenceServerException as error:
            with_deadline.append(error)

    begun = time.monotonic()
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - begun < 1.7
    assert len(with_deadline) >= 2 and all(is_deadline_exceeded(error) for error in with_deadline)
    occupying.join()


def test_the_slo_holds_without_a_timeout(server, wire):
    outcomes = []

    def ask():
        try:
            infer(type(wire)(server), "short")
            outcomes.append("answered")
        except InferenceServerException as error:
            outcomes.append("expired" if is_deadline_exceeded(error) else str(error))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["answered", "expired", "expired", "expired"]


def test_a_model_may_answer_late(wire):
    np.testing.assert_array_equal(infer(wire, "late"), X)


def test_a_client_that_goes_away_frees_its_place(server):
    """Six clients leave while they wait; the next must not wait for their work of 3.6 seconds."""
    body = json.dumps({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]})
    head = f"POST /v2/models/strict/infer HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n\r\n"
    host, port = server.http.split(":")
    gone = []
    for _ in range(6):
        connection = socket.create_connection((host, int(port)))
        connection.sendall((head + body).encode())
        gone.append(connection)
    assert Http(server).client.is_server_live()
    for connection in gone:
        connection.close()
    begun = time.monotonic()
    infer(Http(server), "strict")
    assert time.monotonic() - begun < 2.4, "one may be running, none of the others may be in the way"
