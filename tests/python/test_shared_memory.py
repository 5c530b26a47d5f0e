"""Tensors in system shared memory, with the stock clients' own utilities, over both wires."""

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

import repositories
from serving import Server
from wires import Grpc, Http

FLOAT = np.float32


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("repository")
    repositories.write(repository, "pair", repositories.sum_and_difference())
    repositories.write(repository, "bytes", repositories.identity("BYTES"))
    with Server(repository, "--shared-memory", "local", "--engine", "onnxruntime") as server:
        yield server


@pytest.fixture(params=[Http, Grpc], ids=["http", "grpc"])
def wire(server, request):
    wire = request.param(server)
    yield wire
    wire.client.unregister_system_shared_memory()
    wire.client.close()


@pytest.fixture
def region(wire):
    """A region of the server's, 256 bytes of an object from its 64th on, and the object."""
    handle = shm.create_shared_memory_region("region", "/ripieno-test-region", 320)
    wire.client.register_system_shared_memory("region", "/ripieno-test-region", 256, offset=64)
    yield handle
    shm.destroy_shared_memory_region(handle)


def elsewhere(wire, name, shape, datatype, size, offset=0):
    tensor = wire.module.InferInput(name, shape, datatype)
    tensor.set_shared_memory("region", size, offset)
    return tensor


def wanted(wire, name, size, offset=0):
    output = wire.output(name)
    output.set_shared_memory("region", size, offset)
    return output


def test_inputs_and_outputs_lie_in_a_region(wire, region):
    a, b = np.arange(8, dtype=FLOAT).reshape(2, 4), np.full((2, 4), 10, FLOAT)
    shm.set_shared_memory_region(region, [a, b], offset=64)
    inputs = [elsewhere(wire, name, [2, 4], "FP32", 32, offset) for name, offset in (("a", 0), ("b", 32))]
    outputs = [wanted(wire, "sum", 32, 64), wire.output("difference")]
    answer = wire.client.infer("pair", inputs, outputs=outputs)
    np.testing.assert_array_equal(shm.get_contents_as_numpy(region, FLOAT, [2, 4], offset=128), a + b)
    np.testing.assert_array_equal(answer.as_numpy("difference"), a - b)
    assert answer.get_output("sum") is not None


def test_only_some_tensors_lie_in_a_region(wire, region):
    a, b = np.arange(4, dtype=FLOAT).reshape(1, 4), np.ones((1, 4), FLOAT)
    shm.set_shared_memory_region(region, [b], offset=64)
    inputs = [wire.input("a", a), elsewhere(wire, "b", [1, 4], "FP32", 16)]
    answer = wire.client.infer("pair", inputs, outputs=[wire.output("sum")])
    np.testing.assert_array_equal(answer.as_numpy("sum"), a + b)


def test_strings_lie_in_a_region(wire, region):
    strings = np.array([[b"one", b"", "dröi".encode()]], object)
    serialised = np.array(b"".join(len(text).to_bytes(4, "little") + text for text in strings[0]), object)
    shm.set_shared_memory_region(region, [serialised], offset=64)
    inputs = [elsewhere(wire, "x", [1, 3], "BYTES", len(serialised.item()))]
    wire.client.infer("bytes", inputs, outputs=[wanted(wire, "y", 64, 128)])
    np.testing.assert_array_equal(shm.get_contents_as_numpy(region, np.object_, [1, 3], offset=192), strings)


def test_a_stream_uses_regions(server, region, wire):
    if not isinstance(wire, Grpc):
        pytest.skip("streams are gRPC's")
    answers = []
    shm.set_shared_memory_region(region, [np.ones((1, 4), FLOAT)] * 2, offset=64)
    inputs = [elsewhere(wire, name, [1, 4], "FP32", 16) for name in ("a", "b")]
    wire.client.start_stream(lambda result, error: answers.append(error))
    wire.client.async_stream_infer("pair", inputs, outputs=[wanted(wire, "sum", 16, 32)])
    wire.client.stop_stream()
    assert answers == [None]
    np.testing.assert_array_equal(shm.get_contents_as_numpy(region, FLOAT, [1, 4], offset=96), np.full((1, 4), 2))


def test_regions_are_listed_and_unregistered(wire, region):
    status = wire.client.get_system_shared_memory_status
    assert "region" in str(status()) and "/ripieno-test-region" in str(status("region"))
    wire.client.unregister_system_shared_memory("region")
    assert "region" not in str(status()).replace("regions", "")
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'region'"):
        status("region")
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'region'"):
        wire.client.infer("pair", [elsewhere(wire, name, [1, 4], "FP32", 16) for name in ("a", "b")])


def test_refusals_name_the_way_out(wire):
    client = wire.client
    assert "region" not in str(client.get_cuda_shared_memory_status()).replace("regions", "")
    client.unregister_cuda_shared_memory()
    with pytest.raises(InferenceServerException, match="use system shared memory"):
        client.register_cuda_shared_memory("region", b"aGFuZGxl", 0, 64)
    with pytest.raises(InferenceServerException, match="--record FILE"):
        client.get_trace_settings()
    with pytest.raises(InferenceServerException, match="--record FILE"):
        client.update_trace_settings("pair", {"trace_level": ["TIMESTAMPS"]})
    with pytest.raises(InferenceServerException, match="RIPIENO_LOG"):
        client.get_log_settings()
    with pytest.raises(InferenceServerException, match="RIPIENO_LOG"):
        client.update_log_settings({"log_verbose_level": 1})
