"""Inputs with defaults, which Triton calls optional: a request may replace one, and its neighbours get their own answers."""

import concurrent.futures
import json
import threading
import urllib.request

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

import repositories
from serving import Server
from wires import Grpc, Http

PBTXT = """backend: "onnxruntime"
max_batch_size: 0
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 2 ] }
input { name: "scale" data_type: TYPE_FP32 dims: [ -1 ] optional: true }
input { name: "flip" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
output { name: "y" data_type: TYPE_FP32 dims: [ -1, 2 ] }
"""


def scaled():
    """x * scale, and its negation if `flip` is true; by default three times x."""
    node, info = helper.make_node, helper.make_tensor_value_info
    nodes = [node("Mul", ["x", "scale"], ["m"]), node("Neg", ["m"], ["n"]), node("Where", ["flip", "n", "m"], ["y"])]
    inputs = [info("x", TensorProto.FLOAT, ["batch", 2]), info("scale", TensorProto.FLOAT, ["scales"]), info("flip", TensorProto.BOOL, [1])]
    defaults = [numpy_helper.from_array(np.array([3], np.float32), "scale"), numpy_helper.from_array(np.array([False]), "flip")]
    graph = helper.make_graph(nodes, "g", inputs, [info("y", TensorProto.FLOAT, ["batch", 2])], defaults)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def requests():
    """Requests of which some replace defaults, by values of their own or by the same values as others."""
    for at in range(48):
        x = np.random.default_rng(at).normal(size=(1 + at % 3, 2)).astype(np.float32)
        given = {"x": x}
        if at % 4 == 1:
            given["scale"] = np.array([2], np.float32)
        if at % 4 == 2:
            given["scale"] = np.array([at, -at], np.float32)
        if at % 8 == 3:
            given["flip"] = np.array([True])
        yield given


@pytest.mark.parametrize("engine", ["cpu", "onnxruntime"])
@pytest.mark.parametrize("kind", [Http, Grpc])
def test_neighbours_get_their_own_answers(tmp_path, kind, engine):
    for name in ("bare", "declared", "unbatched"):
        toml = repositories.PATIENT + ('batching = "off"\n' if name == "unbatched" else "")
        path = repositories.write(tmp_path, name, scaled(), toml)
    (tmp_path / "declared" / "config.pbtxt").write_text(PBTXT)
    session = onnxruntime.InferenceSession(path)
    with Server(tmp_path, "--engine", engine) as server, concurrent.futures.ThreadPoolExecutor(16) as pool:
        own = threading.local()

        def answer(name, given):
            if not hasattr(own, "wire"):
                own.wire = kind(server)
            return own.wire.infer(name, ["y"], [own.wire.input(key, array) for key, array in given.items()])["y"]

        for name in ("bare", "declared", "unbatched"):
            calls = [(given, pool.submit(answer, name, given)) for given in requests()]
            for given, call in calls:
                np.testing.assert_allclose(call.result(), session.run(None, given)[0], rtol=1e-6)
        described(server)
        refused(kind(server))


def described(server):
    """The pages of the model say which inputs are optional."""
    read = lambda path: json.load(urllib.request.urlopen(f"http://{server.http}/v2/models/{path}"))
    for name in ("bare", "declared"):
        inputs = {tensor["name"]: tensor for tensor in read(f"{name}/config")["input"]}
        assert {key: tensor["optional"] for key, tensor in inputs.items()} == {"x": False, "scale": True, "flip": True}
        shapes = {tensor["name"]: tensor["shape"] for tensor in read(name)["inputs"]}
        assert shapes == {"x": [-1, 2], "scale": [-1], "flip": [1]}


def refused(wire):
    x = np.ones((1, 2), np.float32)
    call = lambda **given: wire.infer("bare", ["y"], [wire.input(key, array) for key, array in given.items()])
    with pytest.raises(InferenceServerException, match="'scale' of model 'bare' must have shape"):
        call(x=x, scale=np.ones((1, 1), np.float32))
    with pytest.raises(InferenceServerException, match="its inputs are 'x', and with defaults 'scale', 'flip'"):
        call(x=x, other=x)
    with pytest.raises(InferenceServerException, match="input 'x' of model 'bare' is missing"):
        call(scale=np.ones(1, np.float32))
    with pytest.raises(InferenceServerException, match="replaces the default of input 'scale'.*send several requests"):
        call(x=np.ones((5000, 2), np.float32), scale=np.ones(1, np.float32))
    assert call(x=np.ones((5000, 2), np.float32))["y"].shape == (5000, 2), "without one it is split"
