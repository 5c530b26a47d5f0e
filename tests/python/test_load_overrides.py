"""Load calls of the stock Triton clients that bring a configuration and files along."""

import json

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

import repositories
from repositories import Reference
from serving import Server
from wires import Grpc, Http

X = np.arange(16, dtype=np.float32).reshape(1, 16)
SLO = {"parameters": {"slo_ms": {"string_value": "20000"}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    repositories.write(repository, "own", repositories.affine())
    with Server(repository, "--load-overrides", "16") as server:
        yield server


@pytest.fixture(params=[Http, Grpc], ids=["http", "grpc"])
def wire(request, server):
    return request.param(server)


def dense(wire, name):
    return wire.infer(name, ["y"], [wire.input("x", X)])["y"]


def max_batch_size(wire, name):
    config = wire.client.get_model_config(name)
    return int(config["max_batch_size"] if isinstance(config, dict) else config.config.max_batch_size)


def test_a_model_is_brought_replaced_and_unloaded(wire, tmp_path):
    paths = [repositories.write(tmp_path, name, repositories.affine(seed=seed)) for name, seed in (("a", 3), ("b", 4))]
    for path, size in zip(paths, (4, 7)):
        config = json.dumps({**SLO, "max_batch_size": size})
        wire.client.load_model("brought", config=config, files={"file:1/model.onnx": path.read_bytes()})
        assert wire.client.is_model_ready("brought") and max_batch_size(wire, "brought") == size
        np.testing.assert_allclose(dense(wire, "brought"), Reference(path)(x=X)["y"], rtol=0, atol=1e-4)
    with pytest.raises(InferenceServerException, match="brought/1/model.onnx"):
        wire.client.load_model("brought", config="{}", files={"file:1/model.onnx": b"no model"})
    np.testing.assert_allclose(dense(wire, "brought"), Reference(paths[1])(x=X)["y"], rtol=0, atol=1e-4)
    wire.client.unload_model("brought")
    assert not wire.client.is_model_ready("brought")


def test_a_configuration_holds_until_the_model_is_loaded_again(wire):
    before = max_batch_size(wire, "own"), dense(wire, "own")
    wire.client.load_model("own", config=json.dumps({**SLO, "max_batch_size": 3}))
    assert max_batch_size(wire, "own") == 3
    np.testing.assert_array_equal(dense(wire, "own"), before[1])
    with pytest.raises(InferenceServerException, match="max_batchsize"):
        wire.client.load_model("own", config=json.dumps({"max_batchsize": 3}))
    wire.client.load_model("own")
    assert max_batch_size(wire, "own") == before[0]


@pytest.mark.parametrize("kind", [Http, Grpc])
def test_both_are_refused_unless_that_was_opened(tmp_path, kind):
    model = repositories.write(tmp_path, "own", repositories.affine()).read_bytes()
    with Server(tmp_path) as server:
        client = kind(server).client
        for brought in ({"config": "{}"}, {"config": "{}", "files": {"file:1/model.onnx": model}}):
            with pytest.raises(InferenceServerException, match="--load-overrides"):
                client.load_model("own", **brought)
        assert client.is_model_ready("own")
        client.load_model("own")
