"""Writes models in cells with random weights, to measure how a size of cell runs on a machine.

    python clients/python/random_cells.py FOLDER --hidden 1024 --inputs 1024

makes FOLDER/lstm (a sequence of vectors, walk "repeat") and FOLDER/treelstm (a binary tree of vectors), which `ripieno compare FOLDER
--model lstm --policy cellular --policy bucketed,width=10` then runs. Needs numpy and onnx.
"""

import argparse
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def graph(name, inputs, outputs, nodes, weights):
    """A model of these nodes whose first dimension, in every input and output, is the batch."""
    value = lambda item: helper.make_tensor_value_info(item[0], TensorProto.FLOAT, ["batch", item[1]])
    constants = [numpy_helper.from_array(array, label) for label, array in weights.items()]
    body = helper.make_graph(nodes, name, [value(item) for item in inputs], [value(item) for item in outputs], constants)
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def weights(random, *shape):
    return (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def gates(names, source):
    """Splits `source` into one tensor a gate and applies sigmoid, or tanh to the last."""
    parts = [f"{name}_raw" for name in names]
    nodes = [helper.make_node("Split", [source], parts, axis=1)]
    kinds = ["Sigmoid"] * (len(names) - 1) + ["Tanh"]
    return nodes + [helper.make_node(kind, [part], [name]) for kind, part, name in zip(kinds, parts, names)]


def hidden_state():
    return [helper.make_node("Tanh", ["c_next"], ["c_tanh"]), helper.make_node("Mul", ["o", "c_tanh"], ["h_next"])]


def lstm(random, inputs, hidden):
    nodes = [
        helper.make_node("Concat", ["x", "h"], ["xh"], axis=1),
        helper.make_node("Gemm", ["xh", "w", "b"], ["sums"]),
        *gates(["i", "f", "o", "g"], "sums"),
        helper.make_node("Mul", ["f", "c"], ["kept"]),
        helper.make_node("Mul", ["i", "g"], ["new"]),
        helper.make_node("Add", ["kept", "new"], ["c_next"]),
        *hidden_state(),
    ]
    state = [("h", hidden), ("c", hidden)]
    constants = {"w": weights(random, inputs + hidden, 4 * hidden), "b": np.zeros(4 * hidden, np.float32)}
    outputs = [("h_next", hidden), ("c_next", hidden)]
    return graph("lstm", [("x", inputs), *state], outputs, nodes, constants)


def leaf(random, inputs, hidden):
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["sums"]),
        *gates(["i", "o", "g"], "sums"),
        helper.make_node("Mul", ["i", "g"], ["c_next"]),
        *hidden_state(),
    ]
    constants = {"w": weights(random, inputs, 3 * hidden), "b": np.zeros(3 * hidden, np.float32)}
    return graph("leaf", [("x", inputs)], [("h_next", hidden), ("c_next", hidden)], nodes, constants)


def internal(random, hidden):
    nodes = [
        helper.make_node("Concat", ["h0", "h1"], ["h"], axis=1),
        helper.make_node("Gemm", ["h", "w", "b"], ["sums"]),
        *gates(["i", "f0", "f1", "o", "g"], "sums"),
        helper.make_node("Mul", ["f0", "c0"], ["left"]),
        helper.make_node("Mul", ["f1", "c1"], ["right"]),
        helper.make_node("Mul", ["i", "g"], ["new"]),
        helper.make_node("Add", ["left", "right"], ["kept"]),
        helper.make_node("Add", ["kept", "new"], ["c_next"]),
        *hidden_state(),
    ]
    children = [(name, hidden) for name in ("h0", "c0", "h1", "c1")]
    constants = {"w": weights(random, 2 * hidden, 5 * hidden), "b": np.zeros(5 * hidden, np.float32)}
    return graph("internal", children, [("h_next", hidden), ("c_next", hidden)], nodes, constants)


LSTM = """\
walk = "repeat"
slo_ms = {slo}
max_length = 330
max_batch = {batch}

[[block]]
name = "cell"
[block.inputs]
x = "request"
h = "previous.h_next"
c = "previous.c_next"

[[output]]
name = "h"
from = "cell.h_next"
"""

TREE = """\
walk = "tree"
slo_ms = {slo}
max_length = 255
max_batch = {batch}

[[block]]
name = "leaf"
[block.inputs]
x = "request"

[[block]]
name = "internal"
[block.inputs]
h0 = "child0.h_next"
c0 = "child0.c_next"
h1 = "child1.h_next"
c1 = "child1.c_next"

[[output]]
name = "h"
from = "root.h_next"
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--hidden", type=int, default=256, help="size of the state")
    parser.add_argument("--inputs", type=int, default=256, help="size of each element")
    parser.add_argument("--max-batch", type=int, default=64)
    parser.add_argument("--slo-ms", type=float, default=10_000.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    cells = {
        "lstm": (LSTM, {"cell": lstm(random, options.inputs, options.hidden)}),
        "treelstm": (TREE, {
            "leaf": leaf(random, options.inputs, options.hidden),
            "internal": internal(random, options.hidden),
        }),
    }
    for name, (settings, blocks) in cells.items():
        version = options.folder / name / "1"
        version.mkdir(parents=True, exist_ok=True)
        for block, model in blocks.items():
            onnx.save(model, version / f"{block}.onnx")
        text = settings.format(slo=options.slo_ms, batch=options.max_batch)
        (options.folder / name / "model.toml").write_text(text)
        print(f"{options.folder / name}: {', '.join(blocks)}, state of {options.hidden}")


if __name__ == "__main__":
    main()
