"""Batching changes no answer: a thousand random requests at once, each compared with the same request alone."""

import asyncio
import os

import numpy as np
import pytest
import tritonclient.grpc.aio
import tritonclient.http.aio

import repositories
from repositories import Reference
from serving import Server
from wires import Grpc, Http

# RIPIENO_REQUESTS=10000 for the long run.
REQUESTS = int(os.environ.get("RIPIENO_REQUESTS", "1000"))
AT_ONCE = 64
TOLERANCE = 1e-4


@pytest.mark.parametrize("engine", ["cpu", "onnxruntime"])
def test_a_thousand_requests_equal_each_alone(tmp_path, engine):
    references = {
        "digits": Reference(repositories.copy_demo(tmp_path, "digits")),
        "shapes": Reference(repositories.copy_demo(tmp_path, "shapes")),
    }
    shapes = {"digits": (1, 8, 8), "shapes": (3, 32, 32)}
    random = np.random.default_rng(7)
    requests = []
    for _ in range(REQUESTS):
        # The larger model is one in ten: the test is about batches of many members, not about long ones.
        model = "shapes" if random.random() < 0.1 else "digits"
        rows = int(random.integers(1, 5))
        requests.append((model, random.random((rows, *shapes[model]), dtype=np.float32)))
    with Server(tmp_path, "--engine", engine) as server:
        answers = asyncio.run(send_all(server, requests))
        executions = sum(row["execution_count"] for row in statistics(server))
    for (model, x), answer in zip(requests, answers):
        np.testing.assert_allclose(answer, references[model](image=x)["logits"], rtol=0, atol=TOLERANCE)
    assert executions < REQUESTS, "no requests shared a batch, so nothing was tested"


@pytest.mark.parametrize("engine", ["cpu", "onnxruntime"])
def test_newcomers_that_catch_up_with_a_running_batch_change_no_answer(tmp_path, engine):
    """Layers of a CNN as nodes: batches are preempted between them, and merge."""
    settings = repositories.PATIENT + '\ngranularity = "layers"\n'
    reference = Reference(repositories.copy_demo(tmp_path, "shapes", settings))
    random = np.random.default_rng(11)
    sizes = random.integers(1, 5, REQUESTS // 4)
    requests = [("shapes", random.random((rows, 3, 32, 32), dtype=np.float32)) for rows in sizes]
    with Server(tmp_path, "--engine", engine, "--policy", "lazy") as server:
        answers = asyncio.run(send_all(server, requests))
        sizes = [batch["batch_size"] for row in statistics(server) for batch in row["batch_stats"]]
    for (_, x), answer in zip(requests, answers):
        np.testing.assert_allclose(answer, reference(image=x)["logits"], rtol=0, atol=TOLERANCE)
    assert max(sizes) > 4, "no requests shared a batch, so nothing was tested"


async def send_all(server, requests):
    """Every other one over gRPC, a bounded number under way; answers in order."""
    slots = asyncio.Semaphore(AT_ONCE)
    http = tritonclient.http.aio.InferenceServerClient(server.http, conn_limit=AT_ONCE)
    grpc = tritonclient.grpc.aio.InferenceServerClient(server.grpc)
    wires = [(http, Http(server)), (grpc, Grpc(server))]

    async def send(index, model, x):
        client, wire = wires[index % 2]
        async with slots:
            result = await client.infer(model, [wire.input("image", x)], outputs=[wire.output("logits")])
        return result.as_numpy("logits")

    async with http, grpc:
        return await asyncio.gather(*(send(index, *request) for index, request in enumerate(requests)))


def statistics(server):
    return Http(server).client.get_inference_statistics()["model_stats"]
