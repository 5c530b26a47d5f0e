"""Model repositories for the tests: the demo models, small ONNX models made on the spot, and emulated ones."""

import shutil

import numpy as np
import onnx
import onnxruntime
from ml_dtypes import bfloat16
from onnx import TensorProto, helper, numpy_helper

from serving import ROOT

DEMO = ROOT / "models" / "repository"

# What runs emulated models. The device's published latencies are not used: each model here brings its own.
EMULATED = ("--device", "emulated:1080ti")

# Far beyond what any test takes: in most of them a missed deadline would only blur what is tested.
PATIENT = "slo_ms = 20000\n"

# The protocol's name of a type: ONNX's, and rows of three elements with the extremes among them.
DATATYPES = {
    "BOOL": (TensorProto.BOOL, np.array([[True, False, True], [False, False, True]])),
    "UINT8": (TensorProto.UINT8, np.array([[0, 1, 255], [7, 8, 9]], np.uint8)),
    "UINT16": (TensorProto.UINT16, np.array([[0, 1, 65535], [7, 8, 9]], np.uint16)),
    "UINT32": (TensorProto.UINT32, np.array([[0, 1, 2**32 - 1], [7, 8, 9]], np.uint32)),
    "UINT64": (TensorProto.UINT64, np.array([[0, 1, 2**64 - 1], [7, 8, 9]], np.uint64)),
    "INT8": (TensorProto.INT8, np.array([[-128, 0, 127], [7, -8, 9]], np.int8)),
    "INT16": (TensorProto.INT16, np.array([[-(2**15), 0, 2**15 - 1], [7, -8, 9]], np.int16)),
    "INT32": (TensorProto.INT32, np.array([[-(2**31), 0, 2**31 - 1], [7, -8, 9]], np.int32)),
    "INT64": (TensorProto.INT64, np.array([[-(2**63), 0, 2**63 - 1], [7, -8, 9]], np.int64)),
    "FP16": (TensorProto.FLOAT16, np.array([[-1.5, 0.0, 65504.0], [0.25, 6e-8, 3.0]], np.float16)),
    "BF16": (TensorProto.BFLOAT16, np.array([[-1.5, 0.0, 2.0**100], [0.25, 2.0**-100, 3.0]], bfloat16)),
    "FP32": (TensorProto.FLOAT, np.array([[-1.5, 0.0, 3.4e38], [0.1, 1e-38, 3.0]], np.float32)),
    "FP64": (TensorProto.DOUBLE, np.array([[-1.5, 0.0, 1.7e308], [0.1, 1e-300, 3.0]], np.float64)),
    "BYTES": (TensorProto.STRING, np.array([[b"", b"a", "é€".encode()], [b'"\\\n', b"x" * 300, b"z"]], object)),
}


def write(repository, name, model, toml=PATIENT, version="1"):
    """Puts an ONNX model into a repository."""
    folder = repository / name / version
    folder.mkdir(parents=True)
    onnx.checker.check_model(model)
    onnx.save(model, folder / "model.onnx")
    if toml:
        (repository / name / "model.toml").write_text(toml)
    return folder / "model.onnx"


def copy_demo(repository, name, toml=PATIENT):
    """Puts a demo model into a repository, with settings of its own."""
    (repository / name).mkdir(parents=True)
    shutil.copytree(DEMO / name / "1", repository / name / "1")
    (repository / name / "model.toml").write_text(toml)
    return repository / name / "1" / "model.onnx"


def graph(nodes, inputs, outputs, initializers=()):
    """An ONNX model; inputs and outputs are (name, type, shape), "batch" being the dimension of the batch."""
    values = [[helper.make_tensor_value_info(*value) for value in side] for side in (inputs, outputs)]
    body = helper.make_graph(nodes, "test", *values, list(initializers))
    return helper.make_model(body, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])


def identity(datatype):
    """Gives back rows of three elements."""
    kind, _ = DATATYPES[datatype]
    node = helper.make_node("Identity", ["x"], ["y"])
    return graph([node], [("x", kind, ["batch", 3])], [("y", kind, ["batch", 3])])


def affine(width=16, outputs=4, batch="batch", seed=1):
    """One dense layer."""
    random = np.random.default_rng(seed)
    weights = numpy_helper.from_array(random.standard_normal((width, outputs)).astype(np.float32), "weights")
    bias = numpy_helper.from_array(random.standard_normal(outputs).astype(np.float32), "bias")
    nodes = [helper.make_node("MatMul", ["x", "weights"], ["xw"]), helper.make_node("Add", ["xw", "bias"], ["y"])]
    shapes = [("x", TensorProto.FLOAT, [batch, width])], [("y", TensorProto.FLOAT, [batch, outputs])]
    return graph(nodes, *shapes, [weights, bias])


def sum_and_difference():
    """Two inputs, two outputs."""
    nodes = [helper.make_node("Add", ["a", "b"], ["sum"]), helper.make_node("Sub", ["a", "b"], ["difference"])]
    shape = ["batch", 4]
    tensors = [[(name, TensorProto.FLOAT, shape) for name in names] for names in (("a", "b"), ("sum", "difference"))]
    return graph(nodes, *tensors)


def emulated(repository, name, toml):
    """A model that takes the time of its profile and answers with its input."""
    (repository / name / "1").mkdir(parents=True)
    tensor = 'name = "{}"\ndatatype = "FP32"\nshape = [-1, 2]\n'
    settings = f"{toml}\n[[input]]\n{tensor.format('x')}\n[[output]]\n{tensor.format('y')}"
    (repository / name / "model.toml").write_text(settings)


class Reference:
    """The same model in Python's onnxruntime, one request at a time."""

    def __init__(self, path):
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def __call__(self, **inputs):
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, inputs)))
