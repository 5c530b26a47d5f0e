"""The models that attack: small ONNX files made on the spot, each with one property that a careless server trips over.

Latencies are given rather than measured, so that a server starts at once; they say that large batches pay, so that requests
which come together are put together.
"""

import shutil

from onnx import TensorProto, helper, numpy_helper

import numpy as np

import repositories
from repositories import graph
from serving import ROOT

FLOAT, INT64, STRING, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BOOL
# Batching pays, and there is time for it.
BATCHED = "slo_ms = 8000\nmax_batch = 32\nalpha_ms = 0.5\nbeta_ms = 10\nwarm_up = false\n"
INTEGER = [("n", INT64, ["batch", 1])], [("y", INT64, ["batch", 1])]
TABLE = np.arange(100 * 4, dtype=np.float32).reshape(100, 4)


def node(operator, inputs, outputs, **attributes):
    return helper.make_node(operator, inputs, outputs, **attributes)


def ints(name, values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def lookup():
    """Rows of a table by id; 100 is one too many."""
    table = numpy_helper.from_array(TABLE, "table")
    gather = node("Gather", ["table", "id"], ["rows"], axis=0)
    squeeze = node("Squeeze", ["rows", "axis"], ["y"])
    return graph([gather, squeeze], [("id", INT64, ["batch", 1])], [("y", FLOAT, ["batch", 4])], [table, ints("axis", [1])])


def hidden_lookup():
    """The same, but which row it is turns out only inside, so that nobody can refuse it beforehand."""
    table = numpy_helper.from_array(TABLE, "table")
    nodes = [
        node("Mul", ["id", "id"], ["squared"]),
        node("Gather", ["table", "squared"], ["rows"], axis=0),
        node("Squeeze", ["rows", "axis"], ["y"]),
    ]
    return graph(nodes, [("id", INT64, ["batch", 1])], [("y", FLOAT, ["batch", 4])], [table, ints("axis", [1])])


def text():
    """Gives text back."""
    return graph([node("Identity", ["x"], ["y"])], [("x", STRING, ["batch", 1])], [("y", STRING, ["batch", 1])])


def flat_softmax():
    """A softmax over `[n]`: its only dimension looks like a batch and is none."""
    return graph([node("Softmax", ["x"], ["y"], axis=0)], [("x", FLOAT, ["n"])], [("y", FLOAT, ["n"])])


def cumulative():
    """A running sum over the batch."""
    nodes = [node("CumSum", ["x", "axis"], ["y"])]
    axis = numpy_helper.from_array(np.array(0, np.int64), "axis")
    return graph(nodes, [("x", FLOAT, ["batch", 3])], [("y", FLOAT, ["batch", 3])], [axis])


def centred():
    """Takes the mean over the batch off each row."""
    nodes = [node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1), node("Sub", ["x", "mean"], ["y"])]
    return graph(nodes, [("x", FLOAT, ["batch", 3])], [("y", FLOAT, ["batch", 3])])


def shuffled():
    """A reshape that takes the batch for the last dimension: one row comes back as it was, two are mixed."""
    nodes = [node("Reshape", ["x", "shape"], ["flat"]), node("Transpose", ["flat"], ["y"], perm=[1, 0])]
    return graph(nodes, [("x", FLOAT, ["batch", 4])], [("y", FLOAT, ["batch", 4])], [ints("shape", [4, -1])])


def single():
    """A first dimension of one, as exporters write it by default."""
    return repositories.affine(width=4, outputs=2, batch=1)


def doubled():
    """Twice its input, whose second dimension is open."""
    two = numpy_helper.from_array(np.array(2, np.float32), "two")
    return graph([node("Mul", ["x", "two"], ["y"])], [("x", FLOAT, ["batch", "n"])], [("y", FLOAT, ["batch", "n"])], [two])


def wide_integers():
    """A sum with a weight of more than 32 bits."""
    return graph([node("Add", ["n", "large"], ["y"])], *INTEGER, [ints("large", [2**40])])


def square_integers():
    """A product of more than 32 bits of numbers that fit."""
    return graph([node("Mul", ["n", "n"], ["y"])], *INTEGER)


def dense(width=1024, layers=4):
    """Layers of weights: work enough that an answer costs something."""
    random, names = np.random.default_rng(1), ["x", *(f"t{at}" for at in range(layers - 1)), "y"]
    scaled = lambda: (random.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32)
    weights = [numpy_helper.from_array(scaled(), f"w{at}") for at in range(layers)]
    nodes = [node("MatMul", [names[at], f"w{at}"], [names[at + 1]]) for at in range(layers)]
    shape = ["batch", width]
    return graph(nodes, [("x", FLOAT, shape)], [("y", FLOAT, shape)], weights)


def relu():
    return graph([node("Relu", ["x"], ["y"])], [("x", FLOAT, ["batch", 2])], [("y", FLOAT, ["batch", 2])])


def allocator(square):
    """Makes a tensor as large as the request says, and gives its sum, which is zero."""
    nodes = [node("ReduceMax", ["n"], ["top"], keepdims=0), node("Unsqueeze", ["top", "front"], ["one"])]
    if square:
        nodes.append(node("Concat", ["one", "one"], ["shape"], axis=0))
    nodes += [
        node("ConstantOfShape", ["shape" if square else "one"], ["zeros"]),
        node("ReduceSum", ["zeros"], ["total"], keepdims=0),
        node("Cast", ["n"], ["n32"], to=FLOAT),
        node("Add", ["n32", "total"], ["y"]),
    ]
    return graph(nodes, [("n", INT64, ["batch", 1])], [("y", FLOAT, ["batch", 1])], [ints("front", [0])])


def counter():
    """Counts up to the square of the largest number of the batch, and adds where it began."""
    nodes = [
        node("ReduceMax", ["n"], ["top"], keepdims=0),
        node("Mul", ["top", "top"], ["count"]),
        node("Range", ["start", "count", "step"], ["all"]),
        node("ReduceMin", ["all"], ["none"], keepdims=0),
        node("Add", ["n", "none"], ["y"]),
    ]
    numbers = [numpy_helper.from_array(np.array(value), name) for name, value in (("start", 0), ("step", 1))]
    return graph(nodes, *INTEGER, numbers)


def verbose():
    """A number in, a million out: the answer is a million times its request."""
    shape = ints("shape", [1, 1 << 20])
    return graph([node("Expand", ["x", "shape"], ["y"])], [("x", FLOAT, ["batch", 1])], [("y", FLOAT, ["batch", 1 << 20])], [shape])


def relu_chain(length):
    """Deeper than a stack, if each operator is a call."""
    names = ["x", *(f"t{at}" for at in range(length - 1)), "y"]
    nodes = [node("Relu", [before], [after]) for before, after in zip(names, names[1:])]
    return graph(nodes, [("x", FLOAT, ["batch", 2])], [("y", FLOAT, ["batch", 2])])


def nested_ifs(depth):
    """The bytes of a model with an operator that holds a graph that holds an operator that holds a graph …"""
    leaf = helper.make_graph([node("Cast", ["c"], ["z"], to=FLOAT)], "g", [], [helper.make_tensor_value_info("z", FLOAT, [])])
    leaf = leaf.SerializeToString()
    inner = leaf
    for level in range(depth):
        branches = ((b"then_branch", inner), (b"else_branch", leaf))
        attributes = b"".join(field(5, field(1, name) + field(6, body) + b"\xa0\x01\x05") for name, body in branches)
        operator = field(1, b"c") + field(2, b"z") + field(4, b"If") + attributes
        inner = field(1, operator) + field(2, b"g") + field(12, field(1, b"z"))
    condition = numpy_helper.from_array(np.array(True), "c")
    model = graph([node("Add", ["x", "z"], ["y"])], [("x", FLOAT, ["batch", 2])], [("y", FLOAT, ["batch", 2])], [condition])
    body = field(1, operator) + model.graph.SerializeToString()
    model.ClearField("graph")
    return model.SerializeToString() + field(7, body)


def field(number, payload):
    """A length-delimited field of a protobuf message; messages of one field are merged, so that parts can be appended."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def varint(value):
    out = bytearray()
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes(out + bytes([value]))


def put(repository, name, model, toml=BATCHED):
    """A model, checked by nobody, into a repository; also as bytes."""
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    content = model if isinstance(model, bytes) else model.SerializeToString()
    (folder / "model.onnx").write_bytes(content)
    (repository / name / "model.toml").write_text(toml)


def put_reader(repository, name):
    """An encoder with its tokenizer, at most 64 tokens."""
    source = ROOT / "crates" / "text" / "tests" / "models"
    put(repository, name, (source / "encoder.onnx").read_bytes(), BATCHED + "[text]\nmax_length = 64\n")
    shutil.copy(source / "tokenizer.json", repository / name)


def isolation(repository):
    """What the attacks on neighbours need, but for text, which one engine alone takes."""
    for name in ("lookup", "hidden_lookup", "flat_softmax", "cumulative", "centred", "shuffled", "single", "doubled",
                 "wide_integers", "square_integers", "relu"):
        # Squares of ids stay within what the built-in engine computes with, which it wants to be told.
        told = '\n[[input]]\nname = "id"\nmin = 0\nmax = 1000\n' if name == "hidden_lookup" else ""
        put(repository, name, globals()[name](), BATCHED + told)
