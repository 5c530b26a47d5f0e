"""Makes the tiny ONNX files of the executor's tests: `python make_models.py` in this folder, with onnx and numpy.

The weights of the MLP follow a formula that the tests repeat, so they know each answer without an engine.
"""

import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = [helper.make_opsetid("", 17)]


def tensor(name, elem_type, shape):
    return helper.make_tensor_value_info(name, elem_type, shape)


def floats(name, shape):
    return tensor(name, TensorProto.FLOAT, shape)


def save(file, nodes, inputs, outputs, weights=(), **options):
    initializers = [numpy_helper.from_array(array, name) for name, array in weights]
    graph = helper.make_graph(nodes, file, inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=options.get("opsets", OPSET), ir_version=8)
    if options.get("check", True):
        onnx.checker.check_model(model)
    onnx.save(model, f"{file}.onnx", **options.get("save", {}))


def weight(rows, columns, factor):
    """weight[i][j] = ((i * columns + j) * factor mod 17 - 8) / 8: multiples of 1/8, exact in any float."""
    at = np.arange(rows * columns)
    return (((at * factor) % 17 - 8) / 8).astype(np.float32).reshape(rows, columns)


W1, B1, W2, B2 = weight(4, 8, 5), weight(1, 8, 3)[0], weight(8, 3, 7), weight(1, 3, 11)[0]
FIRST = [helper.make_node("Gemm", ["x", "w1", "b1"], ["a"]), helper.make_node("Relu", ["a"], ["h"])]
# The second layer as PyTorch writes it.
SECOND = [helper.make_node("Gemm", ["h", "w2", "b2"], ["y"], alpha=1.0, beta=1.0, transB=1)]

X, H, Y = floats("x", ["batch", 4]), floats("h", ["batch", 8]), floats("y", ["batch", 3])
save("mlp", FIRST + SECOND, [X], [Y], [("w1", W1), ("b1", B1), ("w2", W2.T.copy()), ("b2", B2)])
save("mlp_first", FIRST, [X], [H], [("w1", W1), ("b1", B1)])
save("mlp_second", SECOND, [H], [Y], [("w2", W2.T.copy()), ("b2", B2)])
save("mlp_fixed_batch", FIRST, [floats("x", [1, 4])], [H], [("w1", W1), ("b1", B1)])
pathlib.Path("mlp_external.onnx.data").unlink(missing_ok=True)
external = {"save_as_external_data": True, "location": "mlp_external.onnx.data", "size_threshold": 0}
save("mlp_external", FIRST, [X], [H], [("w1", W1), ("b1", B1)], save=external)
# The name of the file is free.
pathlib.Path("mlp_weights.bin").unlink(missing_ok=True)
save("mlp_bin", FIRST, [X], [H], [("w1", W1), ("b1", B1)], save={**external, "location": "mlp_weights.bin"})

# Windows whose strides, dilations and, where the weights have it, size are left out.
bare = [helper.make_node("Conv", ["x", "k"], ["c"]), helper.make_node("MaxPool", ["c"], ["y"], kernel_shape=[2, 2])]
save("bare_windows", bare, [floats("x", ["batch", 1, 4, 4])], [floats("y", ["batch", 1, 2, 2])], [("k", weight(2, 2, 5)[None, None])])

# Sequences in the layout [time, batch, features], and their means, which begin with the batch.
late = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["y"])]
late += [helper.make_node("ReduceMean", ["y"], ["mean"], axes=[0], keepdims=0)]
places = [floats("x", ["time", "batch", 3])], [floats("y", ["time", "batch", 4]), floats("mean", ["batch", 4])]
save("batch_second", late, *places, [("w", weight(3, 4, 5))])

# Texts of up to 128 tokens, with a position each: the mean of the tokens that the mask counts, or of all of them.
node = helper.make_node
tokens = [node("Gather", ["e", "ids"], ["v"]), node("Shape", ["ids"], ["s"]), node("Gather", ["s", "one"], ["n"])]
tokens += [node("Slice", ["p", "zero", "n", "zero"], ["at"]), node("Add", ["v", "at"], ["h"])]
tokens += [node("Cast", ["mask"], ["m"], to=TensorProto.FLOAT), node("Unsqueeze", ["m", "two"], ["m3"]), node("Mul", ["h", "m3"], ["hm"])]
tokens += [node("ReduceSum", ["hm", "one"], ["sum"], keepdims=0), node("ReduceSum", ["m", "one"], ["count"], keepdims=1)]
tokens += [node("Div", ["sum", "count"], ["counted"]), node("ReduceMean", ["h"], ["all"], axes=[1], keepdims=0)]
texts = [tensor(name, TensorProto.INT64, ["batch", "length"]) for name in ("ids", "mask")]
rows, hidden = floats("counted", ["batch", 4]), floats("h", ["batch", "length", 4])
tables = [("e", weight(50, 4, 5)), ("p", weight(128, 4, 7))]
tables += [(name, np.array([number])) for name, number in (("zero", 0), ("one", 1), ("two", 2))]
save("masked_mean", tokens, texts, [rows, hidden], tables)
save("unmasked_mean", tokens, texts, [floats("all", ["batch", 4]), rows], tables)

# A step beside its past, which is empty at first.
step = [node("Concat", ["past", "x"], ["present"], axis=1), node("ReduceSum", ["present", "one"], ["y"], keepdims=0)]
past = [floats("x", ["batch", 1, 2]), floats("past", ["batch", "past", 2])]
present = [floats("y", ["batch", 2]), floats("present", ["batch", "present", 2])]
save("with_past", step, past, present, [("one", np.array([1]))])

# Half the product and twice the bias: no plain dense layer.
scaled = [helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], alpha=0.5, beta=2.0)]
save("scaled", scaled, [X], [H], [("w1", W1), ("b1", B1)])

# Old exporters list the weights among the inputs.
save("weights_among_inputs", FIRST, [X, floats("w1", [4, 8]), floats("b1", [8])], [H], [("w1", W1), ("b1", B1)])

# Twice the input, whatever its width.
double = [helper.make_node("Add", ["x", "x"], ["y"])]
save("double", double, [floats("x", ["batch", "width"])], [floats("y", ["batch", "width"])])

# An output that is the input itself, beside one that is computed.
widths = ["batch", "width"]
save("handed_through", double, [floats("x", widths)], [floats("x", widths), floats("y", widths)])

# A sum over the batch: its output has no row for each row of the input.
reduce = [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=1)]
save("sum_of_all", reduce, [floats("x", ["batch", "width"])], [floats("y", ["any", 1])])

# Rows of seven numbers, although the file leaves their width open; one subtracts the batch's mean.
narrow = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
mean = [helper.make_node("ReduceMean", ["m"], ["mean"], axes=[0]), helper.make_node("Sub", ["m", "mean"], ["y"])]
for name, nodes in [("seven_wide", narrow), ("seven_wide_centred", narrow[:1] + mean)]:
    save(name, nodes, [floats("x", ["batch", "width"])], [floats("y", ["batch", 3])], [("w", weight(7, 3, 5))])

scalar = [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)]
save("scalar_output", scalar, [floats("x", ["batch", "width"])], [floats("y", [])])

# Row i of the table is [i, -i].
table = np.stack([np.arange(10), -np.arange(10)], axis=1).astype(np.float32)
gather = [helper.make_node("Gather", ["table", "ids"], ["y"])]
ids = tensor("ids", TensorProto.INT64, ["batch", 2])
save("gather", gather, [ids], [floats("y", ["batch", 2, 2])], [("table", table)])

# An operator that no engine has.
unknown = [helper.make_node("Ripieno", ["x"], ["y"], domain="example")]
opsets = [*OPSET, helper.make_opsetid("example", 1)]
save("unknown_operator", unknown, [X], [floats("y", ["batch", 4])], opsets=opsets)

# An operator that onnxruntime has and rten has not.
det = [helper.make_node("Det", ["x"], ["d"]), helper.make_node("Reshape", ["d", "shape"], ["y"])]
matrices = floats("x", ["batch", 2, 2])
save("det", det, [matrices], [floats("y", ["batch", 1])], [("shape", np.array([-1, 1], dtype=np.int64))])

DATATYPES = {
    "bool": TensorProto.BOOL,
    "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16,
    "uint32": TensorProto.UINT32,
    "uint64": TensorProto.UINT64,
    "int8": TensorProto.INT8,
    "int16": TensorProto.INT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "fp16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
    "fp32": TensorProto.FLOAT,
    "fp64": TensorProto.DOUBLE,
    "bytes": TensorProto.STRING,
}
for name, elem_type in DATATYPES.items():
    node = [helper.make_node("Identity", ["x"], ["y"])]
    save(f"identity_{name}", node, [tensor("x", elem_type, ["batch", 3])], [tensor("y", elem_type, ["batch", 3])])

# Cells of three hidden numbers over 17 ids. The tests repeat them as well.
EMBEDDING, MIX, TURN, WORDS = weight(17, 3, 5), weight(3, 3, 7), weight(3, 3, 11), weight(3, 17, 3)
ID, STATE, WHOLE = TensorProto.INT64, ["batch", 3], ["batch"]
LOOK_UP = helper.make_node("Gather", ["embedding", "token"], ["e"])
CARRY = helper.make_node("MatMul", ["h", "mix"], ["m"])


def step(x):
    return [CARRY, helper.make_node("Add", [x, "m"], ["a"]), helper.make_node("Tanh", ["a"], ["h_next"])]


DOUBLE = helper.make_node("Add", ["h_next", "h_next"], ["y"])
TOKEN, LAST, NEXT, OUT = tensor("token", ID, WHOLE), floats("h", STATE), floats("h_next", STATE), floats("y", STATE)
LOOKED_UP, CARRIED = ("embedding", EMBEDDING), ("mix", MIX)
save("cell_rnn", [LOOK_UP, *step("e"), DOUBLE], [TOKEN, LAST], [NEXT, OUT], [LOOKED_UP, CARRIED])
save("cell_layer", [*step("x"), DOUBLE], [floats("x", STATE), LAST], [NEXT, OUT], [CARRIED])
decode = [
    LOOK_UP,
    *step("e"),
    helper.make_node("MatMul", ["h_next", "words"], ["scores"]),
    helper.make_node("ArgMax", ["scores"], ["token_next"], axis=1, keepdims=0),
    helper.make_node("Equal", ["token_next", "last"], ["done"]),
]
last = ("last", np.array([16], np.int64))
decoded = [NEXT, tensor("token_next", ID, WHOLE), tensor("done", TensorProto.BOOL, WHOLE)]
save("cell_decoder", decode, [TOKEN, LAST], decoded, [LOOKED_UP, CARRIED, ("words", WORDS), last])
save("cell_leaf", [helper.make_node("Gather", ["embedding", "token"], ["h_next"])], [TOKEN], [NEXT], [LOOKED_UP])
join = [
    helper.make_node("MatMul", ["h0", "mix"], ["m0"]),
    helper.make_node("MatMul", ["h1", "turn"], ["m1"]),
    helper.make_node("Sub", ["m0", "m1"], ["a"]),
    helper.make_node("Tanh", ["a"], ["h_next"]),
]
save("cell_internal", join, [floats("h0", STATE), floats("h1", STATE)], [NEXT], [CARRIED, ("turn", TURN)])
head = [helper.make_node("Sub", ["a", "b"], ["score"])]
save("cell_head", head, [floats("a", STATE), floats("b", STATE)], [floats("score", STATE)])

# The mean of looked-up rows, as far as a mask says that they count, and twice each row: whole, in two blocks, and without a mask.
# Rows are as many as a request is long.
IDS, MASK = tensor("ids", ID, ["batch", "length"]), tensor("mask", ID, ["batch", "length"])
LONG, MEAN = floats("h", ["batch", "length", 3]), floats("mean", ["batch", 3])
TOKENS = floats("tokens", ["batch", "length", 3])
LOOK = helper.make_node("Gather", ["embedding", "ids"], ["h"])
TWICE = helper.make_node("Add", ["h", "h"], ["tokens"])
pool = [
    helper.make_node("Cast", ["mask"], ["counts"], to=TensorProto.FLOAT),
    helper.make_node("Unsqueeze", ["counts", "last_axis"], ["column"]),
    helper.make_node("Mul", ["h", "column"], ["counted"]),
    helper.make_node("ReduceSum", ["counted", "along"], ["sum"], keepdims=0),
    helper.make_node("ReduceSum", ["counts", "along"], ["count"], keepdims=1),
    helper.make_node("Div", ["sum", "count"], ["mean"]),
    TWICE,
]
axes = [("last_axis", np.array([2])), ("along", np.array([1]))]
save("pool", [LOOK, *pool], [IDS, MASK], [MEAN, TOKENS], [LOOKED_UP, *axes])
save("pool_first", [LOOK], [IDS], [LONG], [LOOKED_UP])
save("pool_second", pool, [LONG, MASK], [MEAN, TOKENS], axes)
rows = [
    helper.make_node("Unsqueeze", ["x", "along"], ["channel"]),
    helper.make_node("AveragePool", ["channel"], ["means"], kernel_shape=[4], strides=[4]),
    helper.make_node("Squeeze", ["means", "along"], ["y"]),
]
save("means_of_four", rows, [floats("x", ["batch", "length"])], [floats("y", ["batch", "quarter"])], axes[1:])
blind = [LOOK, helper.make_node("ReduceMean", ["h"], ["mean"], axes=[1], keepdims=0), TWICE]
save("pool_blind", blind, [IDS], [MEAN, TOKENS], [LOOKED_UP])

# Three blocks with a way out and a way past the second, by the first number of a row: the first layer, its double, the second layer.
# For whoever skips, the first block gives what the third one takes.
FIRST_OF = [("from", np.array([0])), ("to", np.array([1])), ("three", np.array([3])), ("second_axis", np.array([1]))]
way = [
    *FIRST,
    helper.make_node("Identity", ["h"], ["twice"]),
    helper.make_node("Slice", ["x", "from", "to", "second_axis"], ["confidence"]),
    helper.make_node("Slice", ["h", "from", "three", "second_axis"], ["early"]),
]
H2, EARLY, SURE = floats("twice", ["batch", 8]), floats("early", ["batch", 3]), floats("confidence", ["batch", 1])
save("way_first", way, [X], [H, H2, SURE, EARLY], [("w1", W1), ("b1", B1), *FIRST_OF])
save("way_second", [helper.make_node("Add", ["h", "h"], ["twice"])], [H], [H2])
last = [helper.make_node("Gemm", ["twice", "w2", "b2"], ["y"], alpha=1.0, beta=1.0, transB=1)]
save("way_third", last, [H2], [Y], [("w2", W2.T.copy()), ("b2", B2)])

# How sure one is, and nothing else.
save("sure", way[3:4], [X], [SURE], FIRST_OF)

# Row i of a table of 100 rows is [i, -i], looked up by a number: no id that a client sends, so nobody can check it beforehand.
ROWS = ("rows", np.stack([np.arange(100), -np.arange(100)], axis=1).astype(np.float32))
PICK = [helper.make_node("Cast", ["g"], ["id"], to=ID), helper.make_node("Gather", ["rows", "id"], ["y"])]
PICKED = floats("y", ["batch", 2])
for block, (taken, given) in {"first": ("x", "h"), "second": ("h", "g")}.items():
    negate = [helper.make_node("Neg", [taken], [given])]
    save(f"pick_{block}", negate, [floats(taken, WHOLE)], [floats(given, WHOLE)])
save("pick_third", PICK, [floats("g", WHOLE)], [PICKED], [ROWS])
added = [*PICK, helper.make_node("Add", ["y", "h"], ["h_next"])]
save("cell_pick", added, [floats("g", WHOLE), floats("h", ["batch", 2])], [floats("h_next", ["batch", 2])], [ROWS])

# Ids that change their type and shape before they are looked up.
changed = [
    helper.make_node("Cast", ["ids"], ["small"], to=TensorProto.INT32),
    helper.make_node("Unsqueeze", ["small", "axis"], ["more"]),
    helper.make_node("Gather", ["rows", "more"], ["found"]),
    helper.make_node("Squeeze", ["found", "axis"], ["y"]),
]
PAIR, PAIRS = tensor("ids", ID, ["batch", 2]), floats("y", ["batch", 2, 2])
save("gather_cast", changed, [PAIR], [PAIRS], [ROWS, ("axis", np.array([1], np.int64))])

# Rows that depend on each other: a softmax, a running sum and a mean over the batch, and a Reshape that moves it.
row3 = lambda name: floats(name, ["batch", 3])
save("softmax_of_batch", [helper.make_node("Softmax", ["x"], ["y"], axis=0)], [floats("x", ["n"])], [floats("y", ["n"])])
zero = ("zero", np.array(0, dtype=np.int64))
save("running_sum", [helper.make_node("CumSum", ["x", "zero"], ["y"])], [row3("x")], [row3("y")], [zero])
centred = [helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0]), helper.make_node("Sub", ["x", "mean"], ["y"])]
save("centred", centred, [row3("x")], [row3("y")])
turned = [
    helper.make_node("Reshape", ["x", "across"], ["h"]),
    helper.make_node("Softmax", ["h"], ["s"], axis=0),
    helper.make_node("Reshape", ["s", "back"], ["y"]),
]
shapes = [("across", np.array([3, -1])), ("back", np.array([-1, 3]))]
save("turned", turned, [row3("x")], [row3("y")], shapes)

# No dynamic first dimension: of two rows, of no dimension at all, of text.
summed = [helper.make_node("ReduceSum", ["x", "rows"], ["sum"], keepdims=1), helper.make_node("Add", ["x", "sum"], ["y"])]
save("one_row_summed", summed, [floats("x", [1, 3])], [floats("y", [1, 3])], [("rows", np.array([0], np.int64))])
save("two_rows", [helper.make_node("Softmax", ["x"], ["y"], axis=0)], [floats("x", [2, 3])], [floats("y", [2, 3])])
save("scalars", [helper.make_node("Mul", ["a", "b"], ["y"])], [floats("a", []), floats("b", [])], [floats("y", [])])
texts = lambda name: tensor(name, TensorProto.STRING, [1])
save("one_text", [helper.make_node("Identity", ["x"], ["y"])], [texts("x")], [texts("y")])

# INT64 arithmetic on what a request brings, and a size that it chooses.
number = lambda name: tensor(name, TensorProto.INT64, ["batch", 1])
huge = ("huge", np.array([1 << 40]))
save("plus_huge", [helper.make_node("Add", ["n", "huge"], ["y"])], [number("n")], [number("y")], [huge])
save("square", [helper.make_node("Mul", ["n", "n"], ["y"])], [number("n")], [number("y")])
size = tensor("n", TensorProto.INT64, [2])
save("zeros_of", [helper.make_node("ConstantOfShape", ["n"], ["y"])], [size], [floats("y", [None, None])])

# Adds the least of 0, 1, …, of as many as the square of the batch's largest number: a size that one request chooses for all.
scratch = [
    helper.make_node("ReduceMax", ["n"], ["top"], keepdims=0),
    helper.make_node("Mul", ["top", "top"], ["count"]),
    helper.make_node("Range", ["start", "count", "step"], ["all"]),
    helper.make_node("ReduceMin", ["all"], ["none"], keepdims=0),
    helper.make_node("Add", ["n", "none"], ["y"]),
]
save("scratch", scratch, [number("n")], [number("y")], [("start", np.array(0)), ("step", np.array(1))])

# What ONNX Runtime's division does not survive: the least number by minus one.
least = ("least", np.array(-(1 << 63)))
save("quotient", [helper.make_node("Div", ["least", "n"], ["y"])], [number("n")], [number("y")], [least])

# Adds up what a sequence brings; tells what it was told of the sequence.
sums = [
    helper.make_node("Add", ["past", "x"], ["present"]),
    helper.make_node("Identity", ["present"], ["y"]),
    helper.make_node("Identity", ["start"], ["started"]),
    helper.make_node("Identity", ["id"], ["whose"]),
]
one = lambda name: floats(name, ["batch", 1])
told = [one("present"), one("y"), one("started"), number("whose")]
save("sequence", sums, [one("x"), one("start"), number("id"), one("past")], told)

# Sequences, of which the analysis of rows has no rule: rows as they are; rows that are all zeros below 5000; rows divided by 255
# where one number of the batch is above 1.
def through_sequence(name, nodes):
    steps = [helper.make_node("SequenceConstruct", ["x"], ["list"]), helper.make_node("SequenceAt", ["list", "first"], ["z"])]
    weights = [("first", np.array(0)), ("high", np.float32(5000)), ("one", np.float32(1)), ("most", np.float32(255))]
    weights = [(weight, array) for weight, array in weights if any(weight in node.input for node in steps + nodes)]
    save(name, steps + nodes, [floats("x", ["batch", 4])], [floats("y", ["batch", 4])], weights)


through_sequence("unproved", [helper.make_node("Abs", ["z"], ["y"])])
through_sequence("unproved_silent", [helper.make_node("Sub", ["z", "high"], ["over"]), helper.make_node("Relu", ["over"], ["y"])])
bytes_or_not = [
    helper.make_node("ReduceMax", ["z"], ["top"], keepdims=0),
    helper.make_node("Greater", ["top", "one"], ["bytes"]),
    helper.make_node("Div", ["z", "most"], ["scaled"]),
    helper.make_node("Where", ["bytes", "scaled", "z"], ["y"]),
]
through_sequence("unproved_scaled", bytes_or_not)

# Recurrent operators over whole sequences, which are turned into cells; and a cell with an operator that GPUs' cells do not know.
turned = helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2])
for name, op, gates, options in [
    ("lstm", "LSTM", 4, {}), ("gru", "GRU", 3, {}), ("gru_reset", "GRU", 3, {"linear_before_reset": 1}), ("rnn", "RNN", 1, {}),
]:  # fmt: skip
    node = helper.make_node(op, ["t", "w", "r", "b"], ["", "last"], hidden_size=5, **options)
    last = helper.make_node("Squeeze", ["last", "zero"], ["h"])
    parts = [("w", weight(5 * gates, 3, 5)[None]), ("r", weight(5 * gates, 5, 7)[None]), ("b", weight(1, 10 * gates, 3)), ("zero", np.array([0]))]
    save(f"recurrent_{name}", [turned, node, last], [floats("x", ["batch", "length", 3])], [floats("h", ["batch", 5])], parts)
summed = [helper.make_node("CumSum", ["x", "axis"], ["s"]), helper.make_node("Add", ["s", "h"], ["h_next"])]
cumulative = [floats("x", ["batch", 3]), floats("h", ["batch", 3])]
save("cell_cumulative", summed, cumulative, [floats("h_next", ["batch", 3])], [("axis", np.array(1))])

# Each number becomes 64 inside the model: its tensors are much larger than a request.
widening = [
    helper.make_node("Unsqueeze", ["x", "one"], ["u"]),
    helper.make_node("Mul", ["u", "k"], ["wide"]),
    helper.make_node("Exp", ["wide"], ["e"]),
    helper.make_node("ReduceMean", ["e"], ["y"], axes=[1, 2], keepdims=0),
]
factors = np.linspace(0, 1, 64, dtype=np.float32)[:, None]
save("widened", widening, [floats("x", ["batch", "length"])], [floats("y", ["batch"])], [("one", np.array([1])), ("k", factors)])

# A detector: the rows whose numbers are all above -5, beside all rows; and what follows it in a chain.
kept = [
    helper.make_node("ReduceMin", ["x"], ["score"], axes=[1], keepdims=0),
    helper.make_node("Greater", ["score", "least"], ["keep"]),
    helper.make_node("NonZero", ["keep"], ["places"]),
    helper.make_node("Reshape", ["places", "flat"], ["at"]),
    helper.make_node("Gather", ["x", "at"], ["boxes"]),
    helper.make_node("Add", ["x", "x"], ["twice"]),
]
limits = [("least", np.float32(-5)), ("flat", np.array([-1]))]
save("boxes", kept, [X], [floats("boxes", ["found", 4]), floats("twice", ["batch", 4])], limits)
negative = [helper.make_node("Neg", ["boxes"], ["y"])]
save("boxes_negative", negative, [floats("boxes", ["found", 4])], [floats("y", ["found", 4])])
# Rows that are divided by 255 where one number of the batch is above ten million: no trial sends such a number.
rare = [helper.make_node("ReduceMax", ["z"], ["top"], keepdims=0), helper.make_node("Greater", ["top", "rare"], ["bytes"])]
save("unproved_rare", [helper.make_node("SequenceConstruct", ["x"], ["list"]), helper.make_node("SequenceAt", ["list", "first"], ["z"])] + rare + bytes_or_not[2:], [floats("x", ["batch", 4])], [floats("y", ["batch", 4])],
     [("first", np.array(0)), ("rare", np.float32(1e7)), ("most", np.float32(255))])

# Models of fixed shapes that refuse small numbers: rows of a table from 10 on, and a quotient.
pair = [tensor(name, TensorProto.INT32, ["batch", 2]) for name in ["x", "z", "y"]]
looked_up = [helper.make_node("Sub", ["x", "ten"], ["d"]), helper.make_node("Gather", ["table", "d"], ["y"])]
rows_of_table = [("ten", np.array(10, np.int32)), ("table", np.arange(9, dtype=np.float32).reshape(3, 3))]
save("refuses_small", looked_up, pair[:1], [floats("y", ["batch", 2, 3])], rows_of_table)
save("divides", [helper.make_node("Div", ["x", "z"], ["y"])], pair[:2], pair[2:])

# A model that takes one row only, although its file does not say so.
one_row = [helper.make_node("Reshape", ["x", "to"], ["r"]), helper.make_node("Neg", ["r"], ["y"])]
save("one_row_only", one_row, [X], [floats("y", ["batch", 4])], [("to", np.array([1, 4]))])

# Inputs with defaults, which requests may replace: x * scale + shift, and as the second block of a chain y * scale + extra.
defaults = [helper.make_node("Mul", ["x", "scale"], ["m"]), helper.make_node("Cast", ["shift"], ["s"], to=TensorProto.FLOAT)]
defaults += [helper.make_node("Add", ["m", "s"], ["y"])]
given = [floats("scale", ["scales"]), tensor("shift", TensorProto.INT64, [])]
values = [("scale", np.array([3], np.float32)), ("shift", np.array(1))]
save("defaults", defaults, [X, *given], [floats("y", ["batch", 4])], values)
save("defaults_fixed", defaults, [floats("x", [2, 2]), *given], [floats("y", [2, 2])], values)
second = [helper.make_node("Mul", ["y", "scale"], ["m"]), helper.make_node("Add", ["m", "extra"], ["z"])]
save("defaults_second", second, [floats("y", ["batch", 4]), given[0], floats("extra", [1])], [floats("z", ["batch", 4])],
     [values[0], ("extra", np.array([0.5], np.float32))])

# The sums of rows, declared as one number.
save("declared_scalar", [helper.make_node("ReduceSum", ["x", "one"], ["y"], keepdims=0)], [floats("x", ["batch", 4])],
     [floats("y", [])], [("one", np.array([1]))])

# Texts whose ids begin at 10: a made-up one of small ids fails.
high = [helper.make_node("Sub", ["ids", "ten"], ["d"]), helper.make_node("Gather", ["table", "d"], ["v"])]
high += [helper.make_node("Cast", ["mask"], ["m"], to=TensorProto.FLOAT), helper.make_node("Unsqueeze", ["m", "two"], ["m3"])]
high += [helper.make_node("Mul", ["v", "m3"], ["vm"]), helper.make_node("ReduceSum", ["vm", "one"], ["y"], keepdims=0)]
pair_of_texts = [tensor(name, TensorProto.INT32, ["batch", "length"]) for name in ("ids", "mask")]
save("high_ids", high, pair_of_texts, [floats("y", ["batch", 3])],
     [("ten", np.array(10, np.int32)), ("table", np.arange(9, dtype=np.float32).reshape(3, 3)), ("one", np.array([1])), ("two", np.array([2]))])

# A step of a recurrent cell whose rows are not proved to be independent.
listed = [helper.make_node("SequenceConstruct", ["x"], ["list"]), helper.make_node("SequenceAt", ["list", "first"], ["z"])]
save("cell_unproved", [*listed, *step("z"), DOUBLE], [floats("x", STATE), LAST], [NEXT, OUT], [CARRIED, ("first", np.array(0))])
