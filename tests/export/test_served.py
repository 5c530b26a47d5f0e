"""What the exporter writes is served as it is: random weights, answers compared with the cells run alone."""

import numpy as np
import pytest
import tritonclient.grpc as triton
from ripieno_export.models import export_encode_decode, export_recurrent, export_tree
from ripieno_export.reference import Reference
from ripieno_export.tree_lstm import TreeLstm
from ripieno_export.trees import node_table
from serving import Server
from torch import nn

PATIENT = {"slo_ms": 20000.0, "max_length": 40}
DATATYPES = {np.dtype(np.int64): "INT64", np.dtype(np.float32): "FP32"}


def repeat(folder):
    export_recurrent(folder, nn.LSTM(6, 8), embedding=nn.Embedding(20, 6), head=nn.Linear(8, 3), **PATIENT)


def stacked(folder):
    export_recurrent(folder, nn.GRU(6, 8, 3), embedding=nn.Embedding(20, 6), take="every", **PATIENT)


def bidirectional(folder):
    export_recurrent(folder, nn.LSTM(6, 8, bidirectional=True), head=nn.Linear(16, 3), input="vector", **PATIENT)


def both_ways_at_every_step(folder):
    export_recurrent(folder, nn.GRU(6, 8, bidirectional=True), input="vector", take="every", **PATIENT)


def encode_decode(folder):
    encoder, decoder = ((nn.Embedding(20, 6), nn.LSTM(6, 8, 2)) for _ in range(2))
    head = nn.Linear(8, 20)
    export_encode_decode(folder, encoder=encoder, decoder=decoder, head=head, start=1, end=2, extra_steps=5, **PATIENT)


def tree(folder):
    cells = TreeLstm(nn.Embedding(20, 6), hidden=8, arity=3)
    export_tree(folder, leaf=cells.leaf, internal=cells.internal, hidden=8, arity=3, head=nn.Linear(8, 3), **PATIENT)


MODELS = [repeat, stacked, bidirectional, both_ways_at_every_step, encode_decode, tree]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    repository = tmp_path_factory.mktemp("exported")
    for export in MODELS:
        export(repository / export.__name__)
    return repository


@pytest.fixture(scope="module")
def server(folder):
    with Server(folder) as running:
        yield running


def requests(name):
    chance = np.random.default_rng(1)
    if name == "tree":
        for example in (3, [1, 2], [[1, 2, 3], [4, [5, 6]]], [[[[7]]]]):
            table = node_table(example, arity=3)
            yield {
                "token": table.per_node(lambda node: 0 if isinstance(node, list) else node),
                "children": table.children,
            }
        return
    for length in (1, 2, 17, 40):
        if name in ("bidirectional", "both_ways_at_every_step"):
            yield {"vector": chance.standard_normal((1, length, 6)).astype(np.float32)}
        else:
            yield {"token": chance.integers(0, 20, (1, length))}


@pytest.mark.parametrize("name", [export.__name__ for export in MODELS])
def test_served_as_exported(folder, server, name):
    reference = Reference(folder / name)
    with triton.InferenceServerClient(server.grpc) as client:
        for request in requests(name):
            inputs = []
            for key, array in request.items():
                inputs.append(triton.InferInput(key, array.shape, DATATYPES[array.dtype]))
                inputs[-1].set_data_from_numpy(array)
            answer = client.infer(name, inputs)
            for key, expected in reference(**request).items():
                found = answer.as_numpy(key)
                assert found.shape == expected.shape
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
