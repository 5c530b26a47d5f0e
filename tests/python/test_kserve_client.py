"""KServe's own Python client, REST and gRPC. In a process of its own: see conftest.py."""

import asyncio

import numpy as np
import pytest
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig

import repositories
from repositories import Reference
from serving import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    repositories.copy_demo(repository, "digits")
    with Server(repository) as server:
        yield server


def image(rows=2):
    return np.random.default_rng(0).random((rows, 1, 8, 8), dtype=np.float32)


def request(x, binary):
    tensor = InferInput("image", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x, binary_data=binary)
    return InferRequest(model_name="digits", infer_inputs=[tensor])


def check(response, x):
    expected = Reference(repositories.DEMO / "digits" / "1" / "model.onnx")(image=x)["logits"]
    (output,) = response.outputs
    assert output.name == "logits"
    np.testing.assert_allclose(output.as_numpy().reshape(expected.shape), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_rest(server, binary):
    async def run():
        client = InferenceRESTClient(RESTConfig(protocol="v2"))
        url = f"http://{server.http}"
        assert await client.is_server_live(url) and await client.is_server_ready(url)
        assert await client.is_model_ready(url, "digits")
        assert not await client.is_model_ready(url, "no-such-model")
        x = image()
        check(await client.infer(url, request(x, binary), model_name="digits"), x)
        await client.close()

    asyncio.run(run())


@pytest.mark.parametrize("binary", [True, False], ids=["raw", "typed"])
def test_grpc(server, binary):
    async def run():
        client = InferenceGRPCClient(server.grpc)
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready("digits")
        x = image()
        check(await client.infer(request(x, binary)), x)
        await client.close()

    asyncio.run(run())
