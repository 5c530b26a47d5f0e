"""Batching changes no answer: a thousand random requests at once, each compared with the same request alone."""

import asyncio

import numpy as np
import pytest
import tritonclient.grpc.aio
import tritonclient.http.aio

import repositories
from repositories import Reference
from serving import Server
from wires import Grpc, Http

REQUESTS = 1000
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
