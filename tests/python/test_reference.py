"""Models in cells by the reference of clients/python: cells made on the spot, answers that one can compute by hand.

What the server does with such models is compared with this reference elsewhere.
"""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnx
import repositories
from ripieno_export.reference import Reference
from ripieno_export.settings import Block, Output, write_settings

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def cell(folder, name, nodes, inputs, outputs, constants=()):
    """A cell file over tensors [batch]."""
    sides = [[(tensor, kind, ["batch"]) for tensor, kind in side] for side in (inputs, outputs)]
    weights = [numpy_helper.from_array(value, key) for key, value in constants]
    (folder / "1").mkdir(parents=True, exist_ok=True)
    onnx.save(repositories.graph(nodes, *sides, weights), folder / "1" / f"{name}.onnx")


def adder(folder, name, inputs=("x", "sum"), output="sum_next", operator="Add"):
    node = helper.make_node(operator, list(inputs), [output])
    cell(folder, name, [node], [(tensor, FLOAT) for tensor in inputs], [(output, FLOAT)])


def row(*values):
    return np.array([values], np.float32)


def test_repeat_sums_up_and_a_head_runs_once(tmp_path):
    adder(tmp_path, "cell")
    cell(tmp_path, "head", [helper.make_node("Neg", ["sum"], ["y"])], [("sum", FLOAT)], [("y", FLOAT)])
    blocks = [
        Block("cell", {"x": "request", "sum": "previous.sum_next"}, initial={"sum": 100.0}),
        Block("head", {"sum": "cell.sum_next"}, once=True),
    ]
    outputs = [Output("last", "head.y"), Output("all", "cell.sum_next", "every")]
    write_settings(tmp_path, walk="repeat", blocks=blocks, outputs=outputs)
    answer = Reference(tmp_path)(x=row(1, 2, 3))
    assert answer["last"].tolist() == [-106]
    assert answer["all"].tolist() == [[101, 103, 106]]


def test_stacked_layers_take_the_same_step(tmp_path):
    adder(tmp_path, "layer0")
    adder(tmp_path, "layer1")
    below = {"layer0": "request", "layer1": "layer0.sum_next"}
    blocks = [Block(name, {"x": source, "sum": "previous.sum_next"}) for name, source in below.items()]
    write_settings(tmp_path, walk="stacked", blocks=blocks, outputs=[Output("y", "layer1.sum_next", "every")])
    assert Reference(tmp_path)(x=row(1, 1, 1))["y"].tolist() == [[1, 3, 6]]


def test_backward_steps_come_in_the_order_of_the_elements(tmp_path):
    for name in ("forward", "backward"):
        adder(tmp_path, name)
    adder(tmp_path, "head", ("a", "b"), "y")
    blocks = [Block(name, {"x": "request", "sum": "previous.sum_next"}) for name in ("forward", "backward")]
    blocks.append(Block("head", {"a": "forward.sum_next", "b": "backward.sum_next"}))
    outputs = [Output("y", "head.y"), Output("back", "backward.sum_next", "every")]
    write_settings(tmp_path, walk="bidirectional", blocks=blocks, outputs=outputs)
    answer = Reference(tmp_path)(x=row(1, 2, 3))
    assert answer["y"].tolist() == [12]
    assert answer["back"].tolist() == [[6, 5, 3]]


@pytest.mark.parametrize(("limit", "tokens"), [({"extra_steps": 9}, [4, 3, 2, 1, 0]), ({"max_steps": 2}, [4, 3])])
def test_decoding_ends_on_the_mark_or_at_the_limit(tmp_path, limit, tokens):
    adder(tmp_path, "encoder")
    counting = [
        helper.make_node("Sub", ["token", "one"], ["token_next"]),
        helper.make_node("Equal", ["token_next", "zero"], ["done"]),
    ]
    constants = [("one", np.array([1], np.int64)), ("zero", np.array([0], np.int64))]
    sides = [("token", INT)], [("token_next", INT), ("done", TensorProto.BOOL)]
    cell(tmp_path, "decoder", counting, *sides, constants)
    blocks = [
        Block("encoder", {"x": "request", "sum": "previous.sum_next"}),
        Block("decoder", {"token": "previous.token_next"}, initial={"token": 5}, end="done"),
    ]
    outputs = [Output("tokens", "decoder.token_next", "every"), Output("sum", "encoder.sum_next")]
    write_settings(tmp_path, walk="encode-decode", blocks=blocks, outputs=outputs, **limit)
    answer = Reference(tmp_path)(x=row(1, 2))
    assert answer["tokens"].tolist() == [tokens]
    assert answer["sum"].tolist() == [3]


def test_a_tree_in_any_order_of_its_table(tmp_path):
    cell(tmp_path, "leaf", [helper.make_node("Identity", ["x"], ["v"])], [("x", FLOAT)], [("v", FLOAT)])
    adder(tmp_path, "internal", ("a", "b"), "v", operator="Sub")
    blocks = [Block("leaf", {"x": "request"}), Block("internal", {"a": "child0.v", "b": "child1.v"})]
    write_settings(tmp_path, walk="tree", blocks=blocks, outputs=[Output("y", "root.v")])
    reference = Reference(tmp_path)
    root_first = np.array([[[1, 2], [3, 4], [-1, -1], [-1, -1], [-1, -1]]])
    assert reference(x=row(0, 0, 2, 30, 4), children=root_first)["y"].tolist() == [24]
    cycle = np.array([[[1, 2], [0, 2], [-1, -1]]])
    with pytest.raises(ValueError, match="cycle"):
        reference(x=row(0, 0, 1), children=cycle)


def test_a_graph_brings_the_cell_of_each_node(tmp_path):
    cell(tmp_path, "leaf", [helper.make_node("Identity", ["x"], ["v"])], [("x", FLOAT)], [("v", FLOAT)])
    adder(tmp_path, "minus", ("a", "b"), "v", operator="Sub")
    adder(tmp_path, "times", ("a", "b"), "v", operator="Mul")
    below = {"a": "child0.v", "b": "child1.v"}
    blocks = [Block("leaf", {"x": "request"}), Block("minus", below), Block("times", below)]
    write_settings(tmp_path, walk="graph", blocks=blocks, outputs=[Output("y", "root.v")])
    # Node 2 is taken twice, by itself and by its own square; an absent child counts as zeros.
    children = np.array([[[-1, -1], [-1, -1], [0, 1], [2, 2], [3, -1]]])
    answer = Reference(tmp_path)(x=row(7, 4, 0, 0, 0), cell=np.array([[0, 0, 1, 2, 1]]), children=children)
    assert answer["y"].tolist() == [9]
