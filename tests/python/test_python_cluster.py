"""Models written in Python behind the roles of a cluster: what a client reads is what `ripieno serve` says."""

import contextlib
import json
import subprocess
import sys

import numpy as np

from serving import BINARY, ROOT
from test_python_models import PATIENT, package_of_the_checkout, refused, serving, until, write  # noqa: F401
from test_python_steps import COLLATZ, answers_collatz

sys.path.insert(0, str(ROOT / "clients" / "python"))
from ripieno import Client

PICKY = """
import numpy as np, ripieno

@ripieno.model(inputs={"x": ripieno.f32()}, outputs={"y": ripieno.f32()})
def serve(x):
    if (x < 0).any():
        raise ripieno.BadRequest("a root of less than nothing\\nand more")
    if (x > 1000).any():
        raise ValueError("too large\\na secret")
    return np.sqrt(x)
"""
ANYWHERE = "127.0.0.1:0"
LISTENING = ("--http", ANYWHERE, "--grpc", ANYWHERE, "--metrics", ANYWHERE)


@contextlib.contextmanager
def role(*words):
    """A process of the program, and what it prints when it is ready."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([BINARY, *words, "--format", "json"], **pipes) as process:
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.wait()


def cluster(stack, repository, model, backends=1):
    """A client of a cluster that serves a model."""
    start = lambda *words: stack.enter_context(role(*words))
    scheduler = start("scheduler", "--listen", ANYWHERE, "--metrics", ANYWHERE)["listen"]
    for _ in range(backends):
        start("backend", repository, "--scheduler", scheduler, "--engine", "cpu")
    front = start("frontend", "--scheduler", scheduler, "--data", ANYWHERE, *LISTENING)
    client = stack.enter_context(Client(front["http"]))
    until(lambda: client.ready(model), "the model is served")
    return client


def test_steps_written_in_python_run_in_a_cluster(tmp_path):
    write(tmp_path, "collatz", COLLATZ, PATIENT + '[[input]]\nname = "n"\ndatatype = "INT64"\nshape = [-1]\nmin = 1\nmax = 10000\n')
    with contextlib.ExitStack() as stack:
        client = cluster(stack, tmp_path, "collatz", backends=2)
        answers_collatz(client)
        for wrong, text in ((9999, "not 9999"), (0, "0")):
            error = refused(client, "collatz", {"n": np.array([wrong])})
            assert error.status == 400 and text in str(error), error


def test_a_refusal_of_the_model_crosses_a_cluster(tmp_path):
    write(tmp_path, "picky", PICKY)
    with contextlib.ExitStack() as stack:
        client = cluster(stack, tmp_path, "picky")
        alone = stack.enter_context(serving(tmp_path))[1]
        for x, status, text in ((-4, 400, "a root of less than nothing and more"), (4000, 500, "ValueError: too large")):
            inputs = {"x": np.array([x], np.float32)}
            crossed, expected = refused(client, "picky", inputs), refused(alone, "picky", inputs)
            assert (crossed.status, str(crossed)) == (expected.status, str(expected))
            assert crossed.status == status and text in str(crossed) and "secret" not in str(crossed)
        np.testing.assert_array_equal(client.infer("picky", {"x": np.array([4, 9], np.float32)})["y"], [2, 3])
