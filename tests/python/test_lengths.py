"""Requests that differ in length: padded into shared batches, whole and in blocks, each answered as if it had been alone."""

import asyncio
import os

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.grpc.aio
import tritonclient.http.aio

import slice_models
from serving import Server, counted
from wires import Grpc, Http

# RIPIENO_REQUESTS=10000 for the long run.
REQUESTS = int(os.environ.get("RIPIENO_REQUESTS", "120"))
AT_ONCE = 64
TOLERANCE = 1e-4
LONGEST = 48

SETTINGS = f"""
slo_ms = 30000
max_batch = 16
max_length = {LONGEST}
[[input]]
name = "input_ids"
length_dim = 1
[[input]]
name = "attention_mask"
length_dim = 1
pad = 0
[[output]]
name = "last_hidden_state"
length_dim = 1
"""


def write(repository, model, **granularities):
    for name, granularity in granularities.items():
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        onnx.save(model, folder / "model.onnx")
        (repository / name / "model.toml").write_text(granularity + SETTINGS)


def request(random):
    length = int(np.clip(random.lognormal(2.5, 0.7), 1, LONGEST))
    return random.integers(0, 50, (int(random.integers(1, 3)), length))


@pytest.mark.parametrize(("engine", "policy"), [("cpu", "eager"), ("cpu", "dva"), ("onnxruntime", "dva")])
def test_requests_of_any_length_share_batches_and_equal_each_alone(tmp_path, engine, policy):
    model = slice_models.SMALL["bert"]()
    repository = tmp_path / "repository"
    write(repository, model, whole="", stages='granularity = "stages"\nstages = 2\n')
    onnx.save(model, tmp_path / "bert.onnx")
    alone = onnxruntime.InferenceSession(str(tmp_path / "bert.onnx"), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(3)
    requests = [(("whole", "stages")[at % 2], request(random)) for at in range(REQUESTS)]
    with Server(repository, "--engine", engine, "--policy", policy) as server:
        answers = asyncio.run(send_all(server, requests))
        sizes = [batch["batch_size"] for row in statistics(server) for batch in row["batch_stats"]]
        metrics = server.scrape()
    for (_, ids), answer in zip(requests, answers):
        [expected] = alone.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        np.testing.assert_allclose(answer, expected, rtol=0, atol=TOLERANCE)
    assert max(sizes) > 4, "no requests shared a batch, so nothing was tested"
    for name in ("whole", "stages"):
        useful, padding = (counted(metrics, f"ripieno_{kind}_elements_total", model=name) for kind in ("useful", "padding"))
        elements = sum(ids.size for model, ids in requests if model == name)
        assert useful == elements * (2 if name == "stages" else 1)
        assert padding > 0
        print(f"{name} under {policy}: {100 * padding / (useful + padding):.1f} % padding")


def test_what_is_too_long_or_uneven_is_refused_and_so_is_a_model_without_a_mask(tmp_path):
    model = slice_models.SMALL["bert"]()
    repository = tmp_path / "repository"
    write(repository, model, good="")
    write(repository, model, blind="")
    unmasked = SETTINGS.replace('name = "attention_mask"\nlength_dim = 1\npad = 0', 'name = "attention_mask"\nlength_dim = 1\npad = 1')
    (repository / "blind" / "model.toml").write_text(unmasked)
    with Server(repository) as server:
        client = Http(server)
        ask = lambda ids, mask: client.client.infer("good", [client.input("input_ids", ids), client.input("attention_mask", mask)])
        ones = lambda length: np.ones((1, length), np.int64)
        assert ask(ones(LONGEST), ones(LONGEST)).as_numpy("last_hidden_state").shape[1] == LONGEST
        with pytest.raises(Exception, match=f"the model takes 1 to {LONGEST}"):
            ask(ones(LONGEST + 1), ones(LONGEST + 1))
        with pytest.raises(Exception, match="send them equally long"):
            ask(ones(5), ones(6))
        index = {row["name"]: row for row in client.client.get_model_repository_index()}
    assert index["blind"]["state"] == "UNAVAILABLE"
    assert "output 'last_hidden_state' changes by" in index["blind"]["reason"]


async def send_all(server, requests):
    """Every other one over gRPC, a bounded number under way; answers in order."""
    slots = asyncio.Semaphore(AT_ONCE)
    http = tritonclient.http.aio.InferenceServerClient(server.http, conn_limit=AT_ONCE)
    grpc = tritonclient.grpc.aio.InferenceServerClient(server.grpc)
    wires = [(http, Http(server)), (grpc, Grpc(server))]

    async def send(index, model, ids):
        client, wire = wires[index // 2 % 2]
        inputs = [wire.input("input_ids", ids), wire.input("attention_mask", np.ones_like(ids))]
        async with slots:
            result = await client.infer(model, inputs, outputs=[wire.output("last_hidden_state")])
        return result.as_numpy("last_hidden_state")

    async with http, grpc:
        return await asyncio.gather(*(send(index, *request) for index, request in enumerate(requests)))


def statistics(server):
    return Http(server).client.get_inference_statistics()["model_stats"]
