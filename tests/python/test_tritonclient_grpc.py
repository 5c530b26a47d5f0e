"""The stock Triton client over gRPC: blocking, asyncio and streams; every datatype; status codes."""

import asyncio
import queue

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.utils import InferenceServerException

import repositories
from repositories import DATATYPES, Reference
from serving import Server
from wires import Grpc

ANSWER_S = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    repositories.copy_demo(repository, "digits")
    repositories.write(repository, "pair", repositories.sum_and_difference())
    with Server(repository) as server:
        yield server


@pytest.fixture
def wire(server):
    wire = Grpc(server)
    yield wire
    wire.client.close()


@pytest.fixture(scope="module")
def reference():
    return Reference(repositories.DEMO / "digits" / "1" / "model.onnx")


def image(rows=1, seed=0):
    return np.random.default_rng(seed).random((rows, 1, 8, 8), dtype=np.float32)


def test_health(wire):
    client = wire.client
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("digits") and client.is_model_ready("digits", "1")
    assert not client.is_model_ready("no-such-model")


def test_metadata(wire):
    server = wire.client.get_server_metadata()
    assert server.name == "ripieno" and server.version and "binary_tensor_data" in server.extensions
    model = wire.client.get_model_metadata("digits")
    assert (model.name, list(model.versions)) == ("digits", ["1"])
    assert [(x.name, x.datatype, list(x.shape)) for x in model.inputs] == [("image", "FP32", [-1, 1, 8, 8])]
    assert [(x.name, x.datatype, list(x.shape)) for x in model.outputs] == [("logits", "FP32", [-1, 10])]


def test_config_and_index(wire):
    config = wire.client.get_model_config("digits").config
    assert config.name == "digits" and config.max_batch_size > 0 and config.HasField("dynamic_batching")
    assert [list(tensor.dims) for tensor in config.input] == [[1, 8, 8]]
    states = {model.name: model.state for model in wire.client.get_model_repository_index().models}
    assert states["digits"] == "READY"


def test_statistics_count_what_was_served(wire):
    def count():
        return wire.client.get_inference_statistics("pair").model_stats[0]

    before = count()
    x = np.ones((2, 4), np.float32)
    wire.infer("pair", ["sum"], [wire.input("a", x), wire.input("b", x)])
    after = count()
    assert after.inference_count - before.inference_count == 2, "rows"
    assert after.execution_count - before.execution_count == 1, "batches"
    assert after.inference_stats.success.count - before.inference_stats.success.count == 1, "requests"


@pytest.mark.parametrize("rows", [1, 5])
def test_infer_equals_onnxruntime(wire, reference, rows):
    x = image(rows)
    answer = wire.infer("digits", ["logits"], [wire.input("image", x)])["logits"]
    np.testing.assert_allclose(answer, reference(image=x)["logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("algorithm", ["gzip"])
def test_compression(wire, reference, algorithm):
    x = image(4)
    answer = wire.infer("digits", ["logits"], [wire.input("image", x)], compression_algorithm=algorithm)["logits"]
    np.testing.assert_allclose(answer, reference(image=x)["logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_long_answers_are_compressed_as_the_call_is(wire, algorithm):
    a, b = (np.full((1000, 4), value, np.float32) for value in (5, 3))
    inputs = [wire.input("a", a), wire.input("b", b)]
    answer = wire.infer("pair", ["sum"], inputs, compression_algorithm=algorithm)["sum"]
    np.testing.assert_array_equal(answer, a + b)
    answers = queue.Queue()
    wire.client.start_stream(lambda result, error: answers.put((result, error)), compression_algorithm=algorithm)
    wire.client.async_stream_infer("pair", inputs)
    result, error = answers.get(timeout=ANSWER_S)
    assert error is None
    np.testing.assert_array_equal(result.as_numpy("sum"), a + b)
    wire.client.stop_stream()


def test_outputs_and_identity(wire):
    x = np.ones((1, 4), np.float32)
    inputs = [wire.input("a", x), wire.input("b", x)]
    everything = wire.client.infer("pair", inputs, request_id="my-id").get_response()
    assert everything.id == "my-id" and everything.model_name == "pair" and everything.model_version == "1"
    assert sorted(output.name for output in everything.outputs) == ["difference", "sum"]
    named = wire.client.infer("pair", inputs, outputs=[wire.output("difference")]).get_response()
    assert [output.name for output in named.outputs] == ["difference"]


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype(every_datatype, datatype):
    wire = Grpc(every_datatype)
    _, x = DATATYPES[datatype]
    y = wire.infer(datatype.lower(), ["y"], [wire.input("x", x, datatype)])["y"]
    np.testing.assert_array_equal(y, x)


def test_typed_contents_instead_of_raw_bytes(wire):
    """What clients in other languages send: numbers in typed fields."""
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="pair")
    for name in ("a", "b"):
        tensor = request.inputs.add(name=name, datatype="FP32", shape=[1, 4])
        tensor.contents.fp32_contents.extend([1, 2, 3, 4])
    channel = wire.client._channel
    reply = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=ANSWER_S)
    order = [output.name for output in reply.outputs]
    total = np.frombuffer(reply.raw_output_contents[order.index("sum")], np.float32)
    assert total.tolist() == [2, 4, 6, 8]


def test_callbacks(wire, reference):
    answers = queue.Queue()
    images = {str(seed): image(1, seed) for seed in range(16)}
    for name, x in images.items():
        inputs = [wire.input("image", x)]
        wire.client.async_infer("digits", inputs, lambda result, error: answers.put((result, error)), request_id=name)
    for _ in range(len(images)):
        result, error = answers.get(timeout=ANSWER_S)
        assert error is None
        expected = reference(image=images.pop(result.get_response().id))["logits"]
        np.testing.assert_allclose(result.as_numpy("logits"), expected, rtol=0, atol=1e-4)


def test_asyncio_client(server, wire, reference):
    async def run():
        async with tritonclient.grpc.aio.InferenceServerClient(server.grpc) as client:
            assert await client.is_server_ready() and await client.is_model_ready("digits")
            requests = [client.infer("digits", [wire.input("image", image(1, seed))]) for seed in range(20)]
            return [result.as_numpy("logits") for result in await asyncio.gather(*requests)]

    for seed, answer in enumerate(asyncio.run(run())):
        np.testing.assert_allclose(answer, reference(image=image(1, seed))["logits"], rtol=0, atol=1e-4)


def test_stream(wire, reference):
    answers = queue.Queue()
    wire.client.start_stream(lambda result, error: answers.put((result, error)))
    images = {str(seed): image(1, seed) for seed in range(16)}
    for name, x in images.items():
        wire.client.async_stream_infer("digits", [wire.input("image", x)], request_id=name)
    for _ in range(len(images)):
        result, error = answers.get(timeout=ANSWER_S)
        assert error is None
        expected = reference(image=images.pop(result.get_response().id))["logits"]
        np.testing.assert_allclose(result.as_numpy("logits"), expected, rtol=0, atol=1e-4)
    wire.client.stop_stream()
    assert not images


def test_a_stream_survives_an_error(wire):
    answers = queue.Queue()
    wire.client.start_stream(lambda result, error: answers.put((result, error)))
    wire.client.async_stream_infer("no-such-model", [wire.input("image", image())])
    result, error = answers.get(timeout=ANSWER_S)
    assert result is None and "no-such-model" in str(error)
    wire.client.async_stream_infer("digits", [wire.input("image", image())])
    result, error = answers.get(timeout=ANSWER_S)
    assert error is None and result.as_numpy("logits").shape == (1, 10)
    wire.client.stop_stream()


MISTAKES = {
    "unknown model": ("no-such-model", [("image", (1, 1, 8, 8), "FP32")], "NOT_FOUND", "no-such-model"),
    "wrong shape": ("digits", [("image", (1, 1, 8, 9), "FP32")], "INVALID_ARGUMENT", "image"),
    "wrong type": ("digits", [("image", (1, 1, 8, 8), "INT32")], "INVALID_ARGUMENT", "image"),
    "unknown input": ("digits", [("picture", (1, 1, 8, 8), "FP32")], "INVALID_ARGUMENT", "picture"),
    "missing input": ("pair", [("a", (1, 4), "FP32")], "INVALID_ARGUMENT", "b"),
    "unequal rows": ("pair", [("a", (1, 4), "FP32"), ("b", (2, 4), "FP32")], "INVALID_ARGUMENT", "b"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_a_status(wire, mistake):
    model, tensors, status, named = MISTAKES[mistake]
    kinds = {"FP32": np.float32, "INT32": np.int32}
    inputs = [wire.input(name, np.zeros(shape, kinds[kind]), kind) for name, shape, kind in tensors]
    with pytest.raises(InferenceServerException) as caught:
        wire.client.infer(model, inputs)
    assert caught.value.status() == f"StatusCode.{status}" and named in caught.value.message()
