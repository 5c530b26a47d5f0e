"""The stock Triton client over HTTP: every call it has for a model server, every datatype, both tensor forms."""

import asyncio
import json
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

import repositories
from repositories import DATATYPES, Reference
from serving import Server
from wires import Http

# They have no form in JSON.
BINARY_ONLY = {"FP16", "BF16"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    repositories.copy_demo(repository, "digits")
    repositories.write(repository, "dense", repositories.affine())
    repositories.write(repository, "pair", repositories.sum_and_difference())
    with Server(repository) as server:
        yield server


@pytest.fixture
def client(server):
    with tritonclient.http.InferenceServerClient(server.http) as client:
        yield client


def image(rows=1, seed=0):
    return np.random.default_rng(seed).random((rows, 1, 8, 8), dtype=np.float32)


def test_health(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("digits") and client.is_model_ready("digits", "1")
    assert not client.is_model_ready("no-such-model")
    assert not client.is_model_ready("digits", "2")


def test_health_bodies(server):
    for path, key in (("live", "live"), ("ready", "ready")):
        with urllib.request.urlopen(f"http://{server.http}/v2/health/{path}") as reply:
            assert json.load(reply)[key] is True


def test_server_metadata(client):
    metadata = client.get_server_metadata()
    assert metadata["name"] == "ripieno" and metadata["version"]
    assert "binary_tensor_data" in metadata["extensions"]


def test_model_metadata(client):
    metadata = client.get_model_metadata("digits")
    assert metadata["name"] == "digits" and metadata["versions"] == ["1"]
    assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    assert metadata["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [-1, 10]}]


def test_model_config(client):
    config = client.get_model_config("digits")
    assert config["name"] == "digits" and int(config["max_batch_size"]) > 0 and "dynamic_batching" in config
    # With a batch size in the configuration, its shapes leave the batch out.
    assert [[int(n) for n in tensor["dims"]] for tensor in config["input"]] == [[1, 8, 8]]


def test_repository_index(client):
    rows = {row["name"]: row for row in client.get_model_repository_index()}
    assert {"digits", "dense", "pair"} <= rows.keys()
    assert rows["digits"]["state"] == "READY" and rows["digits"]["version"] == "1"


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("rows", [1, 3])
def test_infer_equals_onnxruntime(server, binary, rows):
    wire = Http(server, binary)
    x = image(rows)
    answer = wire.infer("digits", ["logits"], [wire.input("image", x)])
    expected = Reference(repositories.DEMO / "digits" / "1" / "model.onnx")(image=x)["logits"]
    np.testing.assert_allclose(answer["logits"], expected, rtol=0, atol=1e-4)


def test_infer_without_named_outputs_gives_all(client, server):
    wire = Http(server)
    a, b = (np.full((2, 4), value, np.float32) for value in (5, 3))
    result = client.infer("pair", [wire.input("a", a), wire.input("b", b)])
    np.testing.assert_array_equal(result.as_numpy("sum"), a + b)
    np.testing.assert_array_equal(result.as_numpy("difference"), a - b)


def test_only_the_named_outputs_come(client, server):
    wire = Http(server)
    a = np.ones((1, 4), np.float32)
    result = client.infer("pair", [wire.input("a", a), wire.input("b", a)], outputs=[wire.output("sum")])
    assert [output["name"] for output in result.get_response()["outputs"]] == ["sum"]


def test_tensors_may_mix_their_forms(client, server):
    binary, text = Http(server), Http(server, binary=False)
    a, b = (np.full((1, 4), value, np.float32) for value in (5, 3))
    outputs = [binary.output("sum"), text.output("difference")]
    result = client.infer("pair", [text.input("a", a), binary.input("b", b)], outputs=outputs)
    np.testing.assert_array_equal(result.as_numpy("sum"), a + b)
    np.testing.assert_array_equal(result.as_numpy("difference"), a - b)


def test_identity_and_version_are_echoed(client, server):
    inputs = [Http(server).input("image", image())]
    response = client.infer("digits", inputs, model_version="1", request_id="my-id").get_response()
    assert (response["id"], response["model_name"], response["model_version"]) == ("my-id", "digits", "1")


@pytest.mark.parametrize("request_form, response_form", [("gzip", None), (None, "gzip"), ("deflate", "deflate")])
def test_compression(client, server, request_form, response_form):
    x = image(4)
    result = client.infer(
        "digits",
        [Http(server).input("image", x)],
        request_compression_algorithm=request_form,
        response_compression_algorithm=response_form,
    )
    expected = Reference(repositories.DEMO / "digits" / "1" / "model.onnx")(image=x)["logits"]
    np.testing.assert_allclose(result.as_numpy("logits"), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_long_answers_are_compressed_as_asked(server, algorithm, binary):
    wire = Http(server, binary)
    a, b = (np.full((1000, 4), value, np.float32) for value in (5, 3))
    inputs = [wire.input("a", a), wire.input("b", b)]
    answer = wire.infer("pair", ["sum", "difference"], inputs, response_compression_algorithm=algorithm)
    np.testing.assert_array_equal(answer["sum"], a + b)
    np.testing.assert_array_equal(answer["difference"], a - b)
    body = json.dumps({"inputs": [as_json("a", a), as_json("b", b)]}).encode()
    request = urllib.request.Request(f"http://{server.http}/v2/models/pair/infer", body, {"Accept-Encoding": algorithm})
    with urllib.request.urlopen(request) as reply:
        assert reply.headers["Content-Encoding"] == algorithm and len(reply.read()) < a.nbytes


def as_json(name, array):
    return {"name": name, "shape": array.shape, "datatype": "FP32", "data": array.ravel().tolist()}


def test_async_infer(server):
    wire = Http(server, concurrency=4)
    reference = Reference(repositories.DEMO / "digits" / "1" / "model.onnx")
    images = [image(1, seed) for seed in range(16)]
    pending = [wire.client.async_infer("digits", [wire.input("image", x)]) for x in images]
    for x, request in zip(images, pending):
        answer = request.get_result().as_numpy("logits")
        np.testing.assert_allclose(answer, reference(image=x)["logits"], rtol=0, atol=1e-4)


def test_asyncio_client(server):
    async def run():
        async with tritonclient.http.aio.InferenceServerClient(server.http) as client:
            assert await client.is_server_ready() and await client.is_model_ready("digits")
            inputs = [[Http(server).input("image", image(1, seed))] for seed in range(16)]
            results = await asyncio.gather(*(client.infer("digits", each) for each in inputs))
            return [result.as_numpy("logits") for result in results]

    reference = Reference(repositories.DEMO / "digits" / "1" / "model.onnx")
    for seed, answer in enumerate(asyncio.run(run())):
        np.testing.assert_allclose(answer, reference(image=image(1, seed))["logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_in_binary(every_datatype, datatype):
    check_identity(Http(every_datatype), datatype)


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name not in BINARY_ONLY])
def test_every_datatype_in_json(every_datatype, datatype):
    check_identity(Http(every_datatype, binary=False), datatype)


def check_identity(wire, datatype):
    _, x = DATATYPES[datatype]
    y = wire.infer(datatype.lower(), ["y"], [wire.input("x", x, datatype)])["y"]
    if y.dtype == object:
        y = np.array([[item if isinstance(item, bytes) else item.encode() for item in row] for row in y], object)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("data", [[[1, 2, 3, 4]], [1, 2, 3, 4]], ids=["nested", "flat"])
def test_json_data_may_be_nested_or_flat(server, data):
    tensors = [{"name": name, "shape": [1, 4], "datatype": "FP32", "data": data} for name in ("a", "b")]
    status, body = post(server, "pair", json.dumps({"inputs": tensors}).encode())
    outputs = {output["name"]: output["data"] for output in json.loads(body)["outputs"]}
    assert status == 200
    assert np.ravel(outputs["sum"]).tolist() == [2, 4, 6, 8] and np.ravel(outputs["difference"]).tolist() == [0] * 4


def test_raw_binary_request(server):
    """A body that is the one tensor and nothing else, announced by a header length of 0."""
    x = np.arange(16, dtype=np.float32).reshape(1, 16)
    request = urllib.request.Request(
        f"http://{server.http}/v2/models/dense/infer", x.tobytes(), {"Inference-Header-Content-Length": "0"}
    )
    with urllib.request.urlopen(request) as reply:
        body, header = reply.read(), int(reply.headers["Inference-Header-Content-Length"])
    wire = Http(server)
    expected = wire.infer("dense", ["y"], [wire.input("x", x)])["y"]
    np.testing.assert_allclose(np.frombuffer(body[header:], np.float32), expected[0], rtol=0, atol=1e-4)


def post(server, model, body, **headers):
    """A request by hand: status and body."""
    request = urllib.request.Request(f"http://{server.http}/v2/models/{model}/infer", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


MISTAKES = {
    "unknown model": ("no-such-model", [("image", (1, 1, 8, 8), "FP32")], "404", "no-such-model"),
    "wrong shape": ("digits", [("image", (1, 1, 8, 9), "FP32")], "400", "image"),
    "missing dimension": ("digits", [("image", (1, 64), "FP32")], "400", "image"),
    "no rows": ("digits", [("image", (0, 1, 8, 8), "FP32")], "400", "image"),
    "wrong type": ("digits", [("image", (1, 1, 8, 8), "INT32")], "400", "image"),
    "unknown input": ("digits", [("picture", (1, 1, 8, 8), "FP32")], "400", "picture"),
    "missing input": ("pair", [("a", (1, 4), "FP32")], "400", "b"),
    "unequal rows": ("pair", [("a", (1, 4), "FP32"), ("b", (2, 4), "FP32")], "400", "b"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_a_clear_error(client, server, mistake):
    model, tensors, status, named = MISTAKES[mistake]
    kinds = {"FP32": np.float32, "INT32": np.int32}
    inputs = [Http(server).input(name, np.zeros(shape, kinds[kind]), kind) for name, shape, kind in tensors]
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, inputs)
    assert caught.value.status() == status and named in caught.value.message()
    assert client.is_server_ready()


def test_an_unknown_output_is_named(client, server):
    wire = Http(server)
    with pytest.raises(InferenceServerException, match="no-such-output") as caught:
        client.infer("digits", [wire.input("image", image())], outputs=[wire.output("no-such-output")])
    assert caught.value.status() == "400"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"inputs": 3}', b'{"inputs": []}', b"[" * 100_000, b"\xff\xfe", b'{"inputs":[{}]}'],
)
def test_a_malformed_body_gets_400(server, body):
    status, answer = post(server, "digits", body)
    assert status == 400 and json.loads(answer)["error"]


def test_a_header_length_that_lies_gets_400(server):
    for length in ("5", "99999999", "-1", "x"):
        status, answer = post(server, "digits", b"{}", **{"Inference-Header-Content-Length": length})
        assert status == 400 and json.loads(answer)["error"]


def test_a_binary_size_that_lies_gets_400(server):
    tensor = {"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32"}
    for size in (0, 255, 260, 2**40):
        head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": size}}]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        status, answer = post(server, "digits", head + bytes(256), **headers)
        assert status == 400 and json.loads(answer)["error"]


def test_metrics_are_prometheus_text(server):
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    assert any(line.startswith("# TYPE ") and line.endswith(" histogram") for line in lines)
    assert any('model="digits"' in line for line in lines)
