"""Models written in Python: a model.py in a model folder, run by `ripieno.worker` in a process of its own."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import repositories
from serving import BINARY, ROOT, Server

sys.path.insert(0, str(ROOT / "clients" / "python"))
from ripieno import Client, Refused

MOST_S = 60
PATIENT = f'slo_ms = 20000\nmax_batch = 8\npython = "{sys.executable}"\n'
WEIGHTS = np.arange(64, dtype=np.float32).reshape(16, 4)

DENSE = """
import numpy as np, ripieno

W = np.arange(64, dtype=np.float32).reshape(16, 4)

@ripieno.model(inputs={"x": ripieno.f32(16)}, outputs={"y": ripieno.f32(4)})
def serve(x):
    return x @ W
"""


@pytest.fixture(autouse=True)
def package_of_the_checkout(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "clients" / "python"))


def write(folder, name, code, toml=PATIENT, config=None):
    """Puts a model written in Python into a repository."""
    version = folder / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(textwrap.dedent(code))
    (folder / name / "model.toml").write_text(toml)
    if config:
        (folder / name / "config.pbtxt").write_text(config)


@contextlib.contextmanager
def serving(folder, *flags):
    with Server(folder, *flags) as server, Client(server.http) as client:
        yield server, client


def rows(count, seed=1):
    return np.random.default_rng(seed).standard_normal((count, 16)).astype(np.float32)


def reports(server):
    return {model["name"]: model for model in server.ready["models"]}


def refused(client, model, inputs):
    with pytest.raises(Refused) as refusal:
        client.infer(model, inputs)
    return refusal.value


def until(act, what):
    begun = time.monotonic()
    while time.monotonic() - begun < MOST_S:
        if value := act():
            return value
        time.sleep(0.01)
    raise AssertionError(what)


def test_a_function_is_answered_as_numpy_does(tmp_path):
    write(tmp_path, "dense", DENSE)
    with serving(tmp_path) as (server, client):
        report = reports(server)["dense"]
        assert report["engine"] == "python" and report["profile"]["origin"] == "measured"
        assert (report["inputs"], report["outputs"]) == (["x FP32 [-1, 16]"], ["y FP32 [-1, 4]"])
        sent = [rows(1 + at % 8, at) for at in range(64)]
        started = [client.start("dense", {"x": x}) for x in sent]
        for x, answer in zip(sent, started):
            np.testing.assert_allclose(answer.result()["y"], x @ WEIGHTS, rtol=1e-4)
        assert client.metadata("dense")["platform"] == "python"


def test_functions_of_other_files_and_partial_ones_are_models(tmp_path):
    head = "import functools\nimport ripieno\nfrom helper import scaled\n"
    declared = 'ripieno.model(inputs={"x": ripieno.f32(16)}, outputs={"y": ripieno.f32(16)})'
    for name, function in (("partial", "functools.partial(scaled, 3)"), ("other", "scaled3"), ("small", "lambda x: 3 * x")):
        write(tmp_path, name, f"{head}from helper import scaled3\n{declared}({function})\n")
        # A model that another file declares is not this file's.
        helper = f"import ripieno\ndef scaled(by, x):\n    return by * x\ndef scaled3(x):\n    return 3 * x\n{declared}(scaled3)\n"
        (tmp_path / name / "1" / "helper.py").write_text(helper)
    with serving(tmp_path) as (server, client):
        for name in ("partial", "other", "small"):
            assert reports(server)[name]["error"] is None, reports(server)[name]
            np.testing.assert_array_equal(client.infer(name, {"x": rows(2)})["y"], 3 * rows(2))


def test_every_datatype_comes_back(tmp_path):
    code = "import ripieno\n"
    names = {"BOOL": "bool_", "BYTES": "string"}
    kinds = [kind for kind in repositories.DATATYPES if kind != "BF16"]
    for kind in kinds:
        name = names.get(kind, kind.lower().replace("uint", "u").replace("int", "i").replace("fp", "f"))
        code = f"import ripieno\n@ripieno.model\ndef back(x: ripieno.{name}(3)) -> ripieno.{name}(3):\n    return x\n"
        write(tmp_path, kind, code, PATIENT + 'batching = "trust"\nwarm_up = 0\nalpha_ms = 1\nbeta_ms = 1\n')
    with serving(tmp_path) as (_, client):
        for kind in kinds:
            x = repositories.DATATYPES[kind][1]
            np.testing.assert_array_equal(client.infer(kind, {"x": x})["output"], x)


def test_large_tensors_open_dimensions_and_several_outputs(tmp_path):
    code = """
        import numpy as np, ripieno

        @ripieno.model(inputs={"a": ripieno.f32(None, None), "n": ripieno.i64()},
                       outputs={"sum": ripieno.f64(), "twice": ripieno.f32(None, None), "same": ripieno.bool_()})
        def serve(a, n):
            assert not a.flags.writeable
            return {"sum": a.sum((1, 2), dtype=np.float64) + n, "twice": 2 * a, "same": n == n}
    """
    write(tmp_path, "open", code, PATIENT + '[[input]]\nname = "a"\ndatatype = "FP32"\nshape = [-1, 8, 8]\n')
    with serving(tmp_path) as (_, client):
        for size in (1, 7, 100, 400):
            a = np.random.default_rng(size).random((3, size, size)).astype(np.float32)
            answer = client.infer("open", {"a": a, "n": np.array([1, 2, 3])})
            np.testing.assert_allclose(answer["sum"], a.sum((1, 2), dtype=np.float64) + [1, 2, 3])
            np.testing.assert_array_equal(answer["twice"], 2 * a)
            assert answer["same"].all()


def test_a_class_loads_once_and_closes(tmp_path):
    code = f"""
        import pathlib, ripieno

        @ripieno.model(inputs={{"x": ripieno.f32(16)}}, outputs={{"y": ripieno.f32(16)}})
        class Doubled:
            def load(self, device):
                assert device == "cpu"
                self.factor = 2

            def run(self, x):
                return self.factor * x

            def close(self):
                pathlib.Path({str(tmp_path / "closed")!r}).touch()
    """
    write(tmp_path / "models", "doubled", code)
    with serving(tmp_path / "models", "--model-control-mode", "explicit", "--load-model", "doubled") as (_, client):
        np.testing.assert_array_equal(client.infer("doubled", {"x": rows(2)})["y"], 2 * rows(2))
        client.unload("doubled")
        until((tmp_path / "closed").exists, "it was closed")


def test_functions_in_one_file_are_a_chain_with_exits(tmp_path):
    code = """
        import numpy as np, ripieno

        @ripieno.model(inputs={"x": ripieno.f32(16)}, outputs={"h": ripieno.f32(16), "sure": ripieno.f32()})
        def first(x):
            return {"h": x + 1, "sure": x[:, 0]}

        @ripieno.model(inputs={"h": ripieno.f32(16)}, outputs={"y": ripieno.f32(16)})
        def second(h):
            return 10 * h
    """
    write(tmp_path, "chain", code)
    blocks = '[[block]]\nname = "first"\nexit_when = "sure > 100"\nexit_outputs = { y = "h" }\n[[block]]\nname = "second"\n'
    write(tmp_path, "leaving", code, PATIENT + blocks)
    staged = """
        import ripieno

        @ripieno.model
        class Staged:
            def load(self, device):
                self.add = 1

            @ripieno.stage(inputs={"x": ripieno.f32(16)}, outputs={"h": ripieno.f32(16)})
            def first(self, x):
                return x + self.add

            @ripieno.stage(inputs={"h": ripieno.f32(16)}, outputs={"y": ripieno.f32(16)})
            def second(self, h):
                return 10 * h
    """
    write(tmp_path, "staged", staged)
    with serving(tmp_path) as (server, client):
        for name in ("chain", "leaving", "staged"):
            assert [block["name"] for block in reports(server)[name]["blocks"]] == ["first", "second"]
            started = [(x, client.start(name, {"x": x})) for x in (rows(1, at) for at in range(30))]
            for x, answer in started:
                np.testing.assert_allclose(answer.result()["y"], 10 * (x + 1), rtol=1e-6)
        sure = rows(1)
        sure[0, 0] = 200
        np.testing.assert_allclose(client.infer("leaving", {"x": sure})["y"], sure + 1)


FAULTS = """
import ctypes, os, sys, threading, time
import numpy as np, ripieno

@ripieno.model(inputs={"x": ripieno.f32(16)}, outputs={"y": ripieno.f32(16)})
def serve(x):
    for code in x[:, 0]:
        fault(int(code))
    return x[:, :8] if (x[:, 0] == 3).any() else np.repeat(x, 2, 0) if (x[:, 0] == 4).any() else x

def fault(code):
    if code == 1:
        raise ripieno.BadRequest("a one is not welcome\\nsecond line")
    if code == 2:
        raise ValueError("two\\nand its secret")
    if code == 5:
        os._exit(3)
    if code == 6:
        ctypes.string_at(0)
    if code == 7:
        while True:
            pass
    if code == 8:
        hoard = []
        while True:
            hoard.append(np.empty(1 << 26))
    if code == 9:
        print("much " * (2 << 20))
        print("a line of print")
    if code == 10:
        if os.fork() == 0:
            time.sleep(1000)
    if code == 11:
        threading.Thread(target=time.sleep, args=(1000,)).start()
    if code == 12:
        sys.exit("asked to")
    if code == 13:
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(4)
"""

# The status of each fault, and what the client reads; 200 has no fault that it could see.
SEEN = {
    1: (400, "a one is not welcome second line"),
    2: (500, "inference failed: ValueError: two"),
    3: (500, "output 'y' of serve has the shape [1, 8], not [1, 16]"),
    4: (500, "output 'y' of serve has the shape [2, 16], not [1, 16]"),
    5: (503, "exit status: 3"),
    6: (503, "signal: 11"),
    7: (503, "killed after 1s without an answer (task_limit_s)"),
    8: (500, "MemoryError"),
    9: (200, None),
    10: (200, None),
    11: (200, None),
    12: (500, "SystemExit: asked to"),
    13: (503, "exit status: 4"),
}


def test_each_fault_is_one_answer_and_the_worker_is_back(tmp_path):
    limits = "task_limit_s = 1\nmemory_limit_mb = 2048\n" + 'batching = "trust"\nalpha_ms = 1\nbeta_ms = 1\nwarm_up = 0\n'
    write(tmp_path, "faulty", FAULTS, PATIENT + limits)
    write(tmp_path, "neighbour", DENSE)
    with serving(tmp_path) as (server, client):
        failures, stop = [], threading.Event()

        def neighbour():
            while not stop.is_set():
                try:
                    np.testing.assert_allclose(client.infer("neighbour", {"x": rows(2)})["y"], rows(2) @ WEIGHTS, rtol=1e-4)
                except Exception as cause:
                    failures.append(cause)

        beside = threading.Thread(target=neighbour)
        beside.start()
        try:
            for code, (status, text) in SEEN.items():
                good = np.zeros((1, 16), np.float32)
                until(lambda: attempt(client, good) is None, f"the worker is back before fault {code}")
                bad = np.full((1, 16), code, np.float32)
                seen = attempt(client, bad)
                if status == 200:
                    assert seen is None, (code, seen)
                    continue
                assert seen and seen.status == status and text in str(seen), (code, seen)
                assert "secret" not in str(seen)
            until(lambda: attempt(client, good) is None, "the worker is back after all")
        finally:
            stop.set()
            beside.join()
        assert not failures, failures[0]
        log = server.log_tail()
    assert len(log) < 1 << 20


def attempt(client, x):
    """None for an answer that is right, else the refusal."""
    try:
        np.testing.assert_array_equal(client.infer("faulty", {"x": x})["y"], x)
    except Refused as refusal:
        return refusal
    return None


def test_only_the_row_that_raises_fails(tmp_path):
    write(tmp_path, "faulty", FAULTS, PATIENT + 'batching = "trust"\nalpha_ms = 20\nbeta_ms = 20\nwarm_up = 0\n')
    with serving(tmp_path) as (_, client):
        codes = [0, 0, 1, 0, 2, 0, 0, 3, 4, 0, 0, 12] * 4
        started = [client.start("faulty", {"x": np.full((1, 16), code, np.float32)}) for code in codes]
        for code, answer in zip(codes, started):
            if code == 0:
                assert (answer.result()["y"] == 0).all()
                continue
            status, text = SEEN[code]
            with pytest.raises(Refused) as refusal:
                answer.result()
            assert refusal.value.status == status and text in str(refusal.value)


def test_a_model_that_cannot_be_loaded_says_why(tmp_path):
    old = tmp_path / "old" / "ripieno"
    old.mkdir(parents=True)
    (old / "__init__.py").touch()
    (old / "worker.py").write_text(
        "import socket\ns = socket.socket(fileno=0)\nsocket.recv_fds(s, 1, 2)\ns.recv(1 << 16)\n"
        's.sendall(bytes((4, 0, 0, 0, 0x22, 2, 8, 99)))\ns.recv(1)\n'
    )
    interpreter = tmp_path / "old" / "python"
    interpreter.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path / "old"} exec {sys.executable} "$@"\n')
    bare = tmp_path / "old" / "bare"
    bare.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {sys.executable} -I "$@"\n')
    for script in (interpreter, bare):
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    causes = {
        "absent": (DENSE, 'python = ".venv/bin/python"', "there is no interpreter at"),
        "unknown": (DENSE, 'python = "python-of-nowhere"', "python-of-nowhere cannot be started"),
        "bare": (DENSE, f'python = "{bare}"', "No module named 'ripieno'"),
        "old": (DENSE, f'python = "{interpreter}"', "speaks version 99 of the protocol"),
        "lacking": ("import numpy\nimport nothing_like_it\n", None, "model.py:2: ModuleNotFoundError: No module named"),
        "broken": ("def serve(:\n", None, "model.py:1: SyntaxError"),
        "plain": ("def serve(x): return x\n", None, "declares no model"),
        "shapeless": ("import ripieno\n@ripieno.model\ndef serve(x): return x\n", None, "serve declares no inputs"),
        "raising": ("import ripieno\n\n@ripieno.model\nclass M:\n    def load(self, device): 1 / 0\n    def run(self): pass\n", None, "model.py:5: ZeroDivisionError"),
        "ending": ("import os\nos._exit(7)\n", None, "exit status: 7"),
        "relative": ("from .helper import f\n", None, "write import NAME, or from NAME import"),
        "elsewhere": ("open('model.py')\n", None, "it is beside model.py: open pathlib.Path(__file__).with_name('model.py')"),
        "listed": ('import ripieno\n@ripieno.model(inputs=["x"])\ndef f(x): pass\n', None, "inputs of f is no dict"),
        "yielding": (DENSE.replace("return", "yield"), None, "serve is async or yields"),
        "renamed": (DENSE.replace("serve(x)", "serve(data)"), None, "serve takes data, but is called with x"),
        "apart": (DENSE, 'isolation = "none"', "always has a process"),
        "misshaped": (DENSE.replace("x @ W", "x"), None, "output 'y' of serve has the shape [1, 16], not [1, 4]"),
    }
    write(tmp_path / "models", "good", DENSE)
    for name, (code, toml, _) in causes.items():
        base = PATIENT if not (toml or "").startswith("python") else "slo_ms = 20000\nmax_batch = 8\n"
        write(tmp_path / "models", name, code, base + (toml or "") + "\n")
    with serving(tmp_path / "models") as (server, client):
        said = reports(server)
        for name, (_, _, text) in causes.items():
            told = said[name]["error"] or " ".join(said[name]["warnings"])
            assert text in told, (name, told)
        assert client.infer("good", {"x": rows(1)})["y"].shape == (1, 4)


def test_lanes_reload_and_a_killed_worker(tmp_path):
    write(tmp_path, "dense", DENSE)
    with serving(tmp_path, "--devices", "2", "--poll-s", "1") as (server, client):
        workers = until(lambda: (found := children(server)) and len(found) >= 2 and found, "one process a device")
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        until(lambda: answers(client), "the workers are back")
        code = DENSE.replace("return x @ W", "return x @ W + 1")
        (tmp_path / "dense" / "1" / "model.py").write_text(code)
        expected = rows(1) @ WEIGHTS + 1
        until(lambda: answers(client) and np.allclose(client.infer("dense", {"x": rows(1)})["y"], expected, rtol=1e-4), "reloaded")
        last = children(server)
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in last), "no worker outlives the server")


def answers(client):
    with contextlib.suppress(Refused):
        return client.infer("dense", {"x": rows(1)})["y"].shape == (1, 4)


def children(server):
    tasks = f"/proc/{server.process.pid}/task"
    found = []
    for task in os.listdir(tasks):
        with contextlib.suppress(OSError), open(f"{tasks}/{task}/children") as listed:
            found += map(int, listed.read().split())
    return found


TRITON = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        out = pb_utils.get_output_config_by_name(config, "OUT")
        self.kind = pb_utils.triton_string_to_numpy(out["data_type"])

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            assert x.shape == (1, 16) or x.ndim == 1
            if (x == 99).any():
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("no 99", 3)))
                continue
            out = pb_utils.Tensor("OUT", (2 * x).astype(self.kind))
            responses.append(pb_utils.InferenceResponse(output_tensors=[out]))
        return responses

    def finalize(self):
        print("finalized")
"""


def test_models_of_tritons_python_backend_run_unchanged(tmp_path):
    tensors = "input { name: \"IN\" data_type: TYPE_FP32 dims: 16 } output { name: \"OUT\" data_type: TYPE_FP32 dims: 16 }"
    write(tmp_path, "batched", TRITON, PATIENT, f'backend: "python" max_batch_size: 8 {tensors}')
    alone = PATIENT.replace("max_batch = 8\n", "")
    write(tmp_path, "alone", TRITON, alone, f'backend: "python" max_batch_size: 0 {tensors}')
    refusals = {
        "bls": ("pb_utils.InferenceRequest()", "calls of other models (BLS)"),
        "decoupled": ("requests[0].get_response_sender()", "decoupled responses are not supported"),
    }
    for name, (call, _) in refusals.items():
        code = TRITON.replace("responses = []", f"{call}; responses = []")
        write(tmp_path, name, code, PATIENT, f'backend: "python" max_batch_size: 8 {tensors}')
    with serving(tmp_path) as (server, client):
        x = np.arange(48, dtype=np.float32).reshape(3, 16)
        np.testing.assert_array_equal(client.infer("batched", {"IN": x})["OUT"], 2 * x)
        np.testing.assert_array_equal(client.infer("alone", {"IN": x[0]})["OUT"], 2 * x[0])
        bad = x.copy()
        bad[1] = 99
        assert refused(client, "batched", {"IN": bad}).status == 400
        for name, (_, text) in refusals.items():
            assert text in str(refused(client, name, {"IN": x})), name


def test_an_ensemble_of_python_and_onnx(tmp_path):
    tokenizer = """
        import numpy as np, ripieno

        @ripieno.model(inputs={"text": ripieno.string(1)}, outputs={"x": ripieno.f32(16)})
        def tokenize(text):
            rows = [np.frombuffer(line.ljust(16)[:16], np.uint8) for line in text[:, 0]]
            return np.stack(rows).astype(np.float32) / 255
    """
    labels = """
        import numpy as np, ripieno

        @ripieno.model(inputs={"y": ripieno.f32(4)}, outputs={"label": ripieno.string(1)})
        def label(y):
            return np.array([[f"class {at}"] for at in y.argmax(1)], object)
    """
    write(tmp_path, "tokenize", tokenizer)
    write(tmp_path, "label", labels, PATIENT + 'batching = "trust"\n')
    repositories.write(tmp_path, "net", repositories.affine(), "slo_ms = 20000\nmax_batch = 8\n")
    steps = [("tokenize", "text", "text", "x", "x"), ("net", "x", "x", "y", "y"), ("label", "y", "y", "label", "label")]
    shown = " ".join(
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "{into}" value: "{taken}" }} '
        f'output_map {{ key: "{out}" value: "{given}" }} }}'
        for model, into, taken, out, given in steps
    )
    (tmp_path / "all" / "1").mkdir(parents=True)
    (tmp_path / "all" / "config.pbtxt").write_text(
        'platform: "ensemble" max_batch_size: 8 input { name: "text" data_type: TYPE_STRING dims: 1 } '
        f'output {{ name: "label" data_type: TYPE_STRING dims: 1 }} ensemble_scheduling {{ {shown} }}'
    )
    with serving(tmp_path) as (_, client):
        texts = [f"text {at} is this".encode() for at in range(20)]
        started = [client.start("all", {"text": np.array([[text]], object)}) for text in texts]
        for text, answer in zip(texts, started):
            x = np.frombuffer(text.ljust(16)[:16], np.uint8).astype(np.float32)[None] / 255
            y = client.infer("net", {"x": x})["y"]
            assert answer.result()["label"][0, 0] == f"class {y.argmax()}".encode()


def test_lengths_are_padded_and_cut_back(tmp_path):
    code = """
        import numpy as np, ripieno

        @ripieno.model(
            inputs={"ids": ripieno.i64(ripieno.LENGTH), "mask": ripieno.i64(ripieno.LENGTH)},
            outputs={"sums": ripieno.f32(ripieno.LENGTH), "total": ripieno.f32()},
            max_length=32,
        )
        def serve(ids, mask):
            return {"sums": np.cumsum(ids * mask, 1), "total": (ids * mask).sum(1)}
    """.replace("ripieno.f32", "ripieno.i64")
    write(tmp_path, "lengths", code)
    with serving(tmp_path) as (server, client):
        assert reports(server)["lengths"]["unbatched"] is None, reports(server)["lengths"]
        sent = [np.arange(1, 2 + at % 32)[None] for at in range(64)]
        started = [client.start("lengths", {"ids": ids, "mask": np.ones_like(ids)}) for ids in sent]
        for ids, answer in zip(sent, started):
            np.testing.assert_array_equal(answer.result()["sums"], ids.cumsum(1))
            assert answer.result()["total"] == ids.sum()
        long = np.ones((1, 33), np.int64)
        assert refused(client, "lengths", {"ids": long, "mask": long}).status == 400


@pytest.mark.parametrize("framework", ["torch", "jax", "sklearn"])
def test_frameworks(tmp_path, framework):
    pytest.importorskip(framework, reason=f"{framework} is not installed")
    code = {
        "torch": """
            import ripieno, torch
            torch.manual_seed(1)

            @ripieno.model(inputs={"x": ripieno.f32(16)}, outputs={"y": ripieno.f32(4)}, tensors="torch")
            class Net:
                def load(self, device):
                    self.net = torch.nn.Linear(16, 4).to(device)
                    self.net.weight.data = torch.arange(64.0).reshape(16, 4).T.to(device)
                    self.net.bias.data.zero_()

                def run(self, x):
                    assert isinstance(x, torch.Tensor)
                    x *= 1
                    return self.net(x)
        """,
        "jax": """
            import jax.numpy as jnp, ripieno
            W = jnp.arange(64.0).reshape(16, 4)

            @ripieno.model(inputs={"x": ripieno.f32(16)}, outputs={"y": ripieno.f32(4)}, tensors="jax")
            def serve(x):
                return x @ W
        """,
        "sklearn": """
            import numpy as np, ripieno
            from sklearn.linear_model import LinearRegression
            x = np.random.default_rng(1).random((100, 16))
            NET = LinearRegression(fit_intercept=False).fit(x, x @ np.arange(64.0).reshape(16, 4))

            @ripieno.model(inputs={"x": ripieno.f32(16)}, outputs={"y": ripieno.f32(4)})
            def serve(x):
                return NET.predict(x)
        """,
    }[framework]
    write(tmp_path, "net", code)
    with serving(tmp_path) as (server, client):
        assert reports(server)["net"]["unbatched"] is None
        sent = [rows(1 + at % 8, at) for at in range(64)]
        started = [client.start("net", {"x": x}) for x in sent]
        for x, answer in zip(sent, started):
            np.testing.assert_allclose(answer.result()["y"], x @ WEIGHTS, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["function", "torch", "sklearn"])
def test_a_new_folder_serves(tmp_path, kind):
    if kind != "function":
        pytest.importorskip(kind, reason=f"{kind} is not installed")
    command = [BINARY, "new", "own", "--from", kind, "--repository", tmp_path / "models"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert subprocess.run(command, capture_output=True).returncode != 0, "it is not written over"
    with open(tmp_path / "models" / "own" / "model.toml", "a") as toml:
        toml.write(f'python = "{sys.executable}"\n')
    with serving(tmp_path / "models") as (server, client):
        assert reports(server)["own"]["error"] is None
        (answer,) = client.infer("own", {"x": np.ones((2, 16), np.float64 if kind == "sklearn" else np.float32)}).values()
        assert len(answer) == 2
