"""A model whose engine has a process of its own: what ends it harms nobody else, and it comes back. Stock clients, both engines."""

import contextlib
import os
import pathlib
import random
import select
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

import repositories
from serving import ROOT, STOP_S, Server
from wires import Grpc, Http

sys.path.insert(0, str(ROOT / "clients" / "python"))
from ripieno import Client

MOST_S = 60
LIMIT_MIB = 512
KNOWN = 'slo_ms = 20000\nmax_batch = 4\nwarm_up = 0\nbatching = "trust"\nlatency_ms = [1, 1, 1, 1]\n'
APART = KNOWN + 'isolation = "process"\n'


def scratch():
    """Adds zero to each number, for which it needs the room of the square of the largest one of the batch."""
    nodes = [
        helper.make_node("ReduceMax", ["n"], ["top"], keepdims=0),
        helper.make_node("Mul", ["top", "top"], ["count"]),
        helper.make_node("Range", ["start", "count", "step"], ["all"]),
        helper.make_node("ReduceMin", ["all"], ["none"], keepdims=0),
        helper.make_node("Add", ["n", "none"], ["y"]),
    ]
    return over_numbers(nodes, start=0, step=1)


def quotient():
    """Divides the least number, which ONNX Runtime does not survive if it is by minus one."""
    node = helper.make_node("Div", ["least", "n"], ["y"])
    return over_numbers([node], least=-(2**63))


def over_numbers(nodes, **constants):
    numbers = [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    return repositories.graph(nodes, *([(name, TensorProto.INT64, ["batch", 1])] for name in "ny"), numbers)


def greedy(folder):
    limits = f'memory_limit_mb = {LIMIT_MIB}\n[[input]]\nname = "n"\nmin = 1\nmax = 11000\n'
    repositories.write(folder, "killer", scratch(), APART + limits)
    return 11000, "signal: 6"


def dividing(folder):
    repositories.write(folder, "killer", quotient(), APART)
    return -1, "signal: 8"


KILLERS = {"cpu": greedy, "onnxruntime": dividing}


def ask(wire, model, value):
    """The answer of a model; "n" for the killer, "x" for the neighbour."""
    if model == "killer":
        return wire.infer(model, ["y"], [wire.input("n", np.array([[value]]))])["y"]
    return wire.infer(model, ["y"], [wire.input("x", np.full((1, 16), value, np.float32))])["y"]


def until(act, what):
    begun = time.monotonic()
    while time.monotonic() - begun < MOST_S:
        if value := act():
            return value
        time.sleep(0.01)
    raise AssertionError(what)


def answers(server, value=2):
    with contextlib.suppress(InferenceServerException):
        return ask(Http(server), "killer", value) is not None


def alive(pid):
    """Whether a process is there; one that nobody has reaped is."""
    return pathlib.Path(f"/proc/{pid}").exists()


def children(server):
    """The processes that the server has started, zombies among them."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == server.process.pid:
                found.append(int(stat.parent.name))
    return found


def files(server):
    return len(list(pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir()))


def metric(server, name):
    with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[-1])


@contextlib.contextmanager
def neighbour_asked(server, clients=4):
    """Asks the neighbour all the while; every answer must be right."""
    over, counts, errors = threading.Event(), [0] * clients, []

    def loop(at):
        wire = Http(server)
        expected = None
        try:
            while not over.is_set():
                answer = ask(wire, "neighbour", at)
                expected = answer if expected is None else expected
                np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-4)
                counts[at] += 1
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=loop, args=(at,)) for at in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not errors and min(counts) > 0, (errors, counts)


@pytest.mark.parametrize("engine", KILLERS)
def test_what_ends_a_process_is_retryable_and_the_neighbour_knows_nothing_of_it(tmp_path, engine):
    value, how = KILLERS[engine](tmp_path)
    repositories.write(tmp_path, "neighbour", repositories.affine(), KNOWN)
    with Server(tmp_path, "--engine", engine) as server, neighbour_asked(server):
        unready = 0
        for kind in (Http, Grpc, Http, Grpc):
            until(lambda: answers(server), "the model does not come back")
            wire = kind(server)
            with pytest.raises(InferenceServerException, match="the process of the model's engine") as caught:
                ask(wire, "killer", value)
            assert how in caught.value.message() and "retry after" in caught.value.message()
            assert caught.value.status() in ("503", "StatusCode.UNAVAILABLE")
            unready += not wire.client.is_model_ready("killer")
            assert wire.client.is_server_ready() and wire.client.is_model_ready("neighbour")
        assert unready > 0
        until(lambda: answers(server), "the model does not come back")
        until(lambda: Http(server).client.is_model_ready("killer"), "it is not ready")
        assert metric(server, 'ripieno_engine_restarts_total{model="killer"') == 4
        assert metric(server, 'ripieno_engine_up{model="killer"') == 1
        assert metric(server, 'ripieno_requests_total{model="killer",version="1",outcome="outage"') >= 4
        assert metric(server, 'ripieno_requests_total{model="killer",version="1",outcome="failed"') == 0


def test_a_client_is_told_when_to_come_again(tmp_path):
    value, _ = greedy(tmp_path)
    with Server(tmp_path) as server:
        body = '{{"inputs": [{{"name": "n", "shape": [1, 1], "datatype": "INT64", "data": [{}]}}]}}'
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{server.http}/v2/models/killer/infer", body.format(value).encode(), timeout=60)
        assert caught.value.code == 503 and int(caught.value.headers["Retry-After"]) >= 1


@pytest.mark.parametrize("engine", KILLERS)
def test_a_process_goes_with_its_model_and_with_the_server(tmp_path, engine):
    KILLERS[engine](tmp_path)
    with Server(tmp_path, "--engine", engine) as server:
        client = Http(server).client
        (first,) = children(server)
        before = files(server)
        for _ in range(5):
            client.load_model("killer")
            until(lambda: len(children(server)) == 1, "a process is left of what was replaced")
        assert not alive(first) and answers(server)
        assert files(server) <= before + 2
        client.unload_model("killer")
        until(lambda: not children(server), "a process is left of what was unloaded")
        client.load_model("killer")
        (last,) = children(server)
        # Even if it does not listen.
        os.kill(last, signal.SIGSTOP)
        server.terminate()
        assert server.process.wait(STOP_S) == 0
        until(lambda: not alive(last), "a process outlives the server")


@pytest.mark.parametrize("stopped", [False, True])
def test_a_server_that_is_killed_leaves_no_process(tmp_path, stopped):
    greedy(tmp_path)
    with pytest.raises(AssertionError, match="exit code -9"), Server(tmp_path) as server:
        (child,) = children(server)
        if stopped:
            os.kill(child, signal.SIGSTOP)
        server.process.kill()
        server.process.wait()
        until(lambda: not alive(child), "a process outlives the server")


FORKS = """
import os, subprocess, time
import ripieno

@ripieno.model(inputs={"x": ripieno.f32(16)}, outputs={"y": ripieno.f32(16)})
def serve(x):
    fifo = open("FIFO", "wb")
    if x[0, 0]:
        subprocess.Popen(["sleep", "1000"], stdout=fifo)
    elif os.fork() == 0:
        time.sleep(1000)
    fifo.close()
    return x
"""


@pytest.mark.parametrize("program", [0, 1], ids=["fork", "program"])
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_what_a_model_has_started_ends_with_the_server(tmp_path, monkeypatch, end, program):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "clients" / "python"))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    version = tmp_path / "models" / "forks" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(FORKS.replace("FIFO", str(fifo)))
    (version.parent / "model.toml").write_text(KNOWN + f'python = "{sys.executable}"\n')
    server = Server(tmp_path / "models").__enter__()
    with Client(server.http) as client, open(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "rb") as held:
        client.infer("forks", {"x": np.full((1, 16), program, np.float32)})
        assert not select.select([held], [], [], 0)[0], "what the model has started holds the other end"
        server.process.send_signal(end)
        server.process.wait(MOST_S)
        assert select.select([held], [], [], MOST_S)[0], "all that held the other end has ended"


@pytest.mark.parametrize("engine", KILLERS)
def test_a_process_that_hangs_is_killed_and_clients_have_their_deadline(tmp_path, engine):
    KILLERS[engine](tmp_path)
    config = tmp_path / "killer" / "model.toml"
    config.write_text("task_limit_s = 2\n" + config.read_text())
    repositories.write(tmp_path, "neighbour", repositories.affine(), KNOWN)
    with Server(tmp_path, "--engine", engine) as server:
        (child,) = children(server)
        os.kill(child, signal.SIGSTOP)
        wire = Http(server)
        with pytest.raises(InferenceServerException, match="timeout expired"):
            wire.infer("killer", ["y"], [wire.input("n", np.array([[2]]))], timeout=300_000)
        with pytest.raises(InferenceServerException, match="without an answer|started again"):
            ask(wire, "killer", 2)
        ask(wire, "neighbour", 1)
        until(lambda: answers(server), "the model does not come back")
        assert not alive(child)


def test_the_memory_of_a_process_is_bounded_and_its_environment_bare(tmp_path, monkeypatch):
    monkeypatch.setenv("RIPIENO_TEST_SECRET", "hush")
    greedy(tmp_path)
    with Server(tmp_path) as server:
        (child,) = children(server)
        limits = pathlib.Path(f"/proc/{child}/limits").read_text()
        bounds = next(line for line in limits.splitlines() if line.startswith("Max address space")).split()[3:5]
        assert bounds == [str(LIMIT_MIB << 20)] * 2
        assert answers(server, 2000), "what fits is had"
        status = pathlib.Path(f"/proc/{child}/status").read_text()
        assert int(next(line for line in status.splitlines() if line.startswith("VmPeak")).split()[1]) <= LIMIT_MIB * 1024
        assert pathlib.Path(f"/proc/{child}/oom_score_adj").read_text().strip() == "1000"
        assert b"hush" not in pathlib.Path(f"/proc/{child}/environ").read_bytes()
        targets = [os.readlink(link) for link in pathlib.Path(f"/proc/{child}/fd").iterdir()]
        assert sum(target.startswith("socket:") for target in targets) <= 3, targets


def test_processes_killed_at_random_lose_no_request(tmp_path):
    """Every request has one answer: the right one, or that it may come again."""
    repositories.write(tmp_path, "killer", scratch(), APART + '[[input]]\nname = "n"\nmin = 1\nmax = 100\n')
    repositories.write(tmp_path, "neighbour", repositories.affine(), KNOWN)
    chance = random.Random(1)
    with Server(tmp_path) as server, neighbour_asked(server):
        over, counts = threading.Event(), {"ok": 0, "503": 0}

        def loop(at):
            wire = Http(server)
            while not over.is_set():
                try:
                    assert ask(wire, "killer", at) == at
                    counts["ok"] += 1
                except InferenceServerException as error:
                    counts[error.status()] = counts.get(error.status(), 0) + 1
                    time.sleep(0.005)

        threads = [threading.Thread(target=loop, args=(at,)) for at in range(1, 9)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            until(lambda: answers(server), "the model does not come back")
            time.sleep(chance.uniform(0, 0.1))
            for child in children(server):
                os.kill(child, signal.SIGKILL)
        until(lambda: answers(server), "the model does not come back")
        over.set()
        for thread in threads:
            thread.join()
        assert set(counts) == {"ok", "503"} and min(counts.values()) > 0, counts
        assert len(children(server)) == 1, "nobody is left unburied"


def test_keys_that_make_no_sense_are_errors(tmp_path):
    repositories.write(tmp_path, "killer", scratch(), KNOWN + "task_limit_s = 5\n")
    repositories.write(tmp_path, "neighbour", repositories.affine(), KNOWN)
    with Server(tmp_path) as server:
        rows = {row["name"]: row for row in Http(server).client.get_model_repository_index()}
        assert 'isolation = "process"' in rows["killer"]["reason"]
