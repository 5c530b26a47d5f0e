"""Models in cells, served: many requests of mixed shapes at once, whose answers are those of each computed alone."""

import concurrent.futures
import json
import random

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

import repositories
from ripieno_export.reference import Reference
from ripieno_export.trees import node_table
from serving import ROOT, Server

MODELS = ("dates", "arithmetic", "sentiment")
END = 3
# At once: enough that requests of all lengths meet in the same batches.
IN_FLIGHT = 24
REQUESTS = 150


@pytest.fixture(scope="module", params=["cpu", "onnxruntime", "cpu on two devices"])
def server(request, tmp_path_factory):
    repository = tmp_path_factory.mktemp("cells")
    for model in MODELS:
        settings = (repositories.DEMO / model / "model.toml").read_text()
        repositories.copy_demo(repository, model, settings.replace("slo_ms = 200.0", "slo_ms = 20000"))
    engine, *more = request.param.split(" ", 1)
    with Server(repository, "--engine", engine, *(["--devices", "2"] if more else [])) as running:
        yield running


@pytest.fixture(scope="module")
def references():
    return {model: Reference(repositories.DEMO / model) for model in MODELS}


def samples(model):
    return json.loads((ROOT / "models" / "samples" / f"{model}.json").read_text())


def arrays(row):
    return {i["name"]: np.array(i["data"], np.int64).reshape(i["shape"]) for i in row["inputs"]}


def tensors(client, request):
    inputs = []
    for name, array in request.items():
        inputs.append(client.InferInput(name, array.shape, "INT64"))
        inputs[-1].set_data_from_numpy(array)
    return inputs


def text(length, chance):
    return {"token": np.array([[chance.randrange(32, 127) for _ in range(length)]])}


def tree(leaves, chance):
    """Any shape and size, whether the model was trained on such or not."""

    def grow(count):
        if count == 1:
            return chance.randrange(10)
        left = chance.randrange(1, count)
        return (chance.choice("+-*"), grow(left), grow(count - left))

    table = node_table(grow(leaves), children=lambda node: node[1:] if isinstance(node, tuple) else (), arity=2)
    token = table.per_node(lambda node: ord(node[0] if isinstance(node, tuple) else str(node)))
    return {"token": token, "children": table.children}


def mixed(seed):
    chance = random.Random(seed)
    makers = {
        "dates": lambda: text(chance.randint(1, 64), chance),
        "sentiment": lambda: text(chance.randint(1, 256), chance),
        "arithmetic": lambda: tree(chance.randint(1, 64), chance),
    }
    return [(model, makers[model]()) for model in (chance.choice(MODELS) for _ in range(REQUESTS))]


def test_mixed_requests_at_once_are_answered_as_each_alone(server, references):
    with grpc.InferenceServerClient(server.grpc) as client, concurrent.futures.ThreadPoolExecutor(IN_FLIGHT) as pool:
        requests = mixed(seed=1)
        pending = [pool.submit(client.infer, model, tensors(grpc, request)) for model, request in requests]
        for (model, request), answer in zip(requests, pending):
            for name, expected in references[model](**request).items():
                found = answer.result().as_numpy(name)
                assert found.shape == expected.shape and found.dtype == expected.dtype
                if expected.dtype == np.float32:
                    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))
                else:
                    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("model", MODELS)
def test_samples_over_http(server, model):
    known = samples(model)
    with http.InferenceServerClient(server.http) as client:
        for row in known["rows"][:8]:
            values = client.infer(model, tensors(http, arrays(row))).as_numpy(known["output"]).reshape(-1).tolist()
            said = {
                "text": lambda: bytes(values[: values.index(END)]).decode(),
                "label": lambda: known["labels"][values[0]],
                "number": lambda: str(values[0]),
            }[known["reads"]]()
            assert said == row["answer"], row["text"]


LEAF = [-1, -1]
NO_TREES = {
    "cycle": [[1, 2], [0, 2], LEAF],
    "missing child": [LEAF, [0, 9]],
    "two roots": [LEAF, LEAF],
    "itself": [[0, 0]],
    "empty": [],
}


@pytest.mark.parametrize("kind", NO_TREES)
def test_what_is_no_tree_is_refused(server, kind):
    table = np.array([NO_TREES[kind]], np.int64).reshape(1, -1, 2)
    request = {"token": np.full(table.shape[:2], ord("1")), "children": table}
    refused(server, "arithmetic", request)


@pytest.mark.parametrize(("model", "length"), [("dates", 0), ("dates", 65), ("sentiment", 257)])
def test_a_length_beyond_the_bounds_is_refused(server, model, length):
    refused(server, model, {"token": np.full((1, length), 65)})


def test_a_deep_tree_beyond_the_bounds_is_refused(server):
    tree = 1
    for _ in range(10_000):
        tree = ("+", tree, 1)
    table = node_table(tree, children=lambda node: node[1:] if isinstance(node, tuple) else (), arity=2)
    refused(server, "arithmetic", {"token": np.full(table.children.shape[:2], 49), "children": table.children})


@pytest.mark.parametrize("model", ["dates", "sentiment"])
def test_an_unknown_token_is_refused(server, model):
    refused(server, model, {"token": np.array([[65, 200, 65]])})


def refused(server, model, request):
    with grpc.InferenceServerClient(server.grpc) as client:
        with pytest.raises(InferenceServerException) as error:
            client.infer(model, tensors(grpc, request))
        assert error.value.status() == "StatusCode.INVALID_ARGUMENT"
        # Nothing is left behind.
        known = samples(model)["rows"][0]
        client.infer(model, tensors(grpc, arrays(known)))
