"""`ripieno slice`: what exporters write, cut in every way, against the whole in onnxruntime."""

import json
import pathlib
import subprocess

import numpy as np
import onnx
import onnxruntime
import pytest

import slice_models
from serving import BINARY, Server
from wires import Http

TOLERANCE = 1e-4
ROWS = (1, 3, 8)
CUTS = {"2": ["--stages", "2"], "4": ["--stages", "4"], "8": ["--stages", "8"], "layers": ["--per-node"]}


def cut(file, folder, *flags):
    """Cuts a model; what the command prints."""
    command = [str(BINARY), "slice", str(file), "-o", str(folder), "--format", "json", *flags]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def chained(folder, blocks, given):
    """Runs the blocks one after the other; every tensor by name."""
    tensors = dict(given)
    for block in blocks:
        run = session(folder / "1" / f"{block['name']}.onnx")
        taken = {value.name: tensors[value.name] for value in run.get_inputs()}
        tensors.update(zip((value.name for value in run.get_outputs()), run.run(None, taken)))
    return tensors


@pytest.mark.parametrize("how", CUTS)
@pytest.mark.parametrize("name", slice_models.SMALL)
def test_the_blocks_in_a_chain_give_what_the_whole_gives(tmp_path, name, how):
    model = slice_models.SMALL[name]()
    file = tmp_path / "model.onnx"
    onnx.save(model, file)
    # Stages of models that take microseconds are not worth measuring; the built-in engine is compared below.
    told = cut(file, tmp_path / name, "--estimate", "--check", "--runs", "1", *CUTS[how])
    assert how == "layers" or len(told["blocks"]) == int(how)
    for comparison in told["comparisons"]:
        assert comparison["difference"] <= TOLERANCE, comparison
    whole = session(file)
    for rows in ROWS:
        given = slice_models.inputs_of(model, rows, seed=rows)
        [expected] = whole.run(None, given)
        found = chained(tmp_path / name, told["blocks"], given)[whole.get_outputs()[0].name]
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_weights_go_where_they_are_used_and_nowhere_else(tmp_path):
    for name, make in slice_models.SMALL.items():
        model = make()
        onnx.save(model, tmp_path / f"{name}.onnx")
        told = cut(tmp_path / f"{name}.onnx", tmp_path / name, "--per-node", "--estimate")
        one_copy = sum(onnx.numpy_helper.to_array(weight).nbytes for weight in model.graph.initializer)
        in_blocks = sum(block["weight_bytes"] for block in told["blocks"])
        # What is in two blocks: the lists of sizes that reshapes take.
        assert in_blocks - told["shared_weight_bytes"] <= one_copy
        assert in_blocks <= 1.02 * one_copy, name
        size = sum(path.stat().st_size for path in (tmp_path / name / "1").iterdir())
        assert size <= 1.15 * (tmp_path / f"{name}.onnx").stat().st_size + 2000 * len(told["blocks"])


def test_external_weights_are_read_from_beside_the_model(tmp_path):
    model = slice_models.SMALL["resnet50"]()
    file = tmp_path / "model.onnx"
    given = slice_models.inputs_of(model, 2)
    onnx.save(model, file, save_as_external_data=True, location="model.onnx.data", size_threshold=512)
    [expected] = session(file).run(None, given)
    told = cut(file, tmp_path / "cut", "--stages", "3")
    assert told["measured"]
    found = chained(tmp_path / "cut", told["blocks"], given)["logits"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_a_cut_model_is_served_at_once_and_one_is_cut_at_load(tmp_path):
    model = slice_models.SMALL["mobilenet_v3"]()
    repository = tmp_path / "repository"
    for name, toml in (
        ("at_load", 'granularity = "stages"\nstages = 3\nslo_ms = 20000\n'),
        ("layers", 'granularity = "layers"\nslo_ms = 20000\n'),
        ("whole", "slo_ms = 20000\n"),
    ):
        (repository / name / "1").mkdir(parents=True)
        onnx.save(model, repository / name / "1" / "model.onnx")
        (repository / name / "model.toml").write_text(toml)
    tensor = next(node.output[0] for node in model.graph.node if node.op_type == "Add")
    cut(repository / "whole" / "1" / "model.onnx", repository / "before", "--at", tensor, "--estimate")
    told = repository / "before" / "model.toml"
    told.write_text("slo_ms = 20000\n" + told.read_text())
    assert len(list((repository / "before" / "1").iterdir())) == 2
    for _ in range(2):  # The second time from what the first one kept.
        with Server(repository) as server:
            wire = Http(server)
            for rows in ROWS:
                given = slice_models.inputs_of(model, rows, seed=rows)
                [expected] = session(repository / "whole" / "1" / "model.onnx").run(None, given)
                for name in ("at_load", "layers", "before"):
                    answer = wire.client.infer(name, [wire.input("images", given["images"])])
                    np.testing.assert_allclose(answer.as_numpy("logits"), expected, rtol=0, atol=TOLERANCE)
        kept = list((repository / "at_load" / ".ripieno").glob("slices-*/stage*.onnx"))
        assert len(kept) == 3
        assert len(list((repository / "layers" / ".ripieno").glob("slices-*/layer*.onnx"))) > 20


def test_what_cannot_be_cut_is_refused_and_served_whole(tmp_path):
    helper = onnx.helper
    shape = ["batch", 4]
    branch = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["b"])], "branch", [], [helper.make_tensor_value_info("b", 1, shape)]
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["more"]),
        helper.make_node("If", ["more"], ["chosen"], then_branch=branch, else_branch=branch),
        helper.make_node("Add", ["chosen", "x"], ["y"]),
    ]
    zero = onnx.numpy_helper.from_array(np.float32(0), "zero")
    values = [[helper.make_tensor_value_info(name, 1, shape)] for name in "xy"]
    model = helper.make_model(
        helper.make_graph(nodes, "test", *values, [zero]), ir_version=8, opset_imports=[helper.make_opsetid("", 17)]
    )
    (tmp_path / "branching" / "1").mkdir(parents=True)
    file = tmp_path / "branching" / "1" / "model.onnx"
    onnx.save(model, file)
    command = [str(BINARY), "slice", str(file), "--per-node", "-o", str(tmp_path / "cut")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1 and "If 'chosen' is control flow" in run.stderr, run.stderr
    (tmp_path / "branching" / "model.toml").write_text('granularity = "layers"\nslo_ms = 20000\n')
    with Server(tmp_path) as server:
        wire = Http(server)
        x = np.ones((2, 4), np.float32)
        answer = wire.client.infer("branching", [wire.input("x", x)])
        np.testing.assert_allclose(answer.as_numpy("y"), 2 * x)
        assert "served whole" in server.log_tail()


KINDS = {
    "lstm": dict(kind="LSTM", layers=1),
    "lstm every": dict(kind="LSTM", layers=1, every=True, vocabulary=20),
    "lstm stacked": dict(kind="LSTM", layers=3),
    "lstm stacked every": dict(kind="LSTM", layers=2, every=True),
    "lstm both": dict(kind="LSTM", layers=1, both=True),
    "gru": dict(kind="GRU", layers=2, every=True),
    "gru after": dict(kind="GRU", layers=1, after=1),
    "gru both": dict(kind="GRU", layers=1, both=True, vocabulary=20),
    "rnn": dict(kind="RNN", layers=2),
    "rnn both": dict(kind="RNN", layers=1, both=True),
}


@pytest.mark.parametrize("name", KINDS)
def test_cells_stepped_through_a_sequence_give_what_the_operator_gives(tmp_path, name):
    model = slice_models.recurrent(hidden=8, features=6, classes=3, **KINDS[name])
    onnx.save(model, tmp_path / "model.onnx")
    told = cut(tmp_path / "model.onnx", tmp_path / "cells", "--cells")
    given = slice_models.inputs_of(model, 3)
    given["x"] = given["x"] % 20 if given["x"].dtype == np.int64 else given["x"]
    [expected] = session(tmp_path / "model.onnx").run(None, given)
    found = walk(tmp_path / "cells", told, given["x"])["y"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["lstm every", "lstm stacked", "gru both"])
def test_a_recurrent_model_is_cut_into_cells_at_load(tmp_path, name):
    model = slice_models.recurrent(hidden=8, features=6, classes=3, **KINDS[name])
    (tmp_path / "sequences" / "1").mkdir(parents=True)
    file = tmp_path / "sequences" / "1" / "model.onnx"
    onnx.save(model, file)
    (tmp_path / "sequences" / "model.toml").write_text('granularity = "cells"\nslo_ms = 20000\nmax_batch = 4\n')
    whole = session(file)
    for _ in range(2):  # The second time from what the first one kept.
        with Server(tmp_path) as server:
            assert "served whole" not in server.log_tail()
            wire = Http(server)
            for length in (1, 5, 12):
                given = {"x": slice_models.inputs_of(model, 1, length, seed=length)["x"]}
                given["x"] = given["x"] % 20 if given["x"].dtype == np.int64 else given["x"]
                [expected] = whole.run(None, given)
                answer = wire.client.infer("sequences", [wire.input("x", given["x"])])
                np.testing.assert_allclose(answer.as_numpy("y"), expected, rtol=0, atol=TOLERANCE)


def walk(folder: pathlib.Path, told, x):
    """As the server walks: each block takes its state of the step before, zeros at first; a backward one begins at the end."""
    length = x.shape[1]
    sessions = {block["name"]: session(folder / "1" / f"{block['name']}.onnx") for block in told["blocks"]}
    last, every = {}, {}
    steps = [(at, block) for at in range(length) for block in told["blocks"] if not block["once"]]
    for at, block in steps + [(0, block) for block in told["blocks"] if block["once"]]:
        name, run = block["name"], sessions[block["name"]]
        element = x[:, length - 1 - at if name == "backward" else at]
        taken = {}
        for (tensor, source), value in ((pair, find(run, pair[0])) for pair in block["inputs"]):
            source = source.replace("previous.", f"{name}.")
            zeros = np.zeros((x.shape[0], *value.shape[1:]), np.float32) if source != "request" else None
            taken[tensor] = element if source == "request" else last.get(source, zeros)
        for value, result in zip(run.get_outputs(), run.run(None, taken)):
            last[f"{name}.{value.name}"] = result
            every.setdefault(f"{name}.{value.name}", []).append(result)
    return {
        answer["name"]: np.stack(every[answer["from"]], axis=1) if answer["every"] else last[answer["from"]]
        for answer in told["outputs"]
    }


def find(run, name):
    return next(value for value in run.get_inputs() if value.name == name)
