"""Recurrent networks: the cells walked step by step give what PyTorch gives for the sequence as a whole."""

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from ripieno_export.cells import Layer, export_cell, relative_difference
from ripieno_export.models import export_recurrent
from ripieno_export.reference import Reference

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
LENGTHS = (1, 2, 7, 30)


def close(expected, found):
    expected = expected.detach().numpy()
    assert expected.shape == found.shape
    assert relative_difference(expected, found) < 1e-5


def sequences():
    return [torch.randint(0, 20, (1, length)) for length in LENGTHS]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_the_last_state(tmp_path, kind, layers, bias):
    rnn = KINDS[kind](6, 5, layers, batch_first=True, bias=bias)
    embedding = nn.Embedding(20, 6)
    export_recurrent(tmp_path, rnn, embedding=embedding, max_length=30)
    reference = Reference(tmp_path)
    assert reference.walk == ("repeat" if layers == 1 else "stacked")
    for token in sequences():
        states, _ = rnn(embedding(token))
        close(states[:, -1], reference(token=token.numpy())["output"])


@pytest.mark.parametrize("layers", [1, 2])
def test_a_head_at_the_end_or_at_every_step(tmp_path, layers):
    rnn, embedding, head = nn.GRU(6, 5, layers, batch_first=True), nn.Embedding(20, 6), nn.Linear(5, 3)
    export_recurrent(tmp_path / "last", rnn, embedding=embedding, head=head, output="scores")
    export_recurrent(tmp_path / "every", rnn, embedding=embedding, head=head, output="scores", take="every")
    last, every = Reference(tmp_path / "last"), Reference(tmp_path / "every")
    for token in sequences():
        states, _ = rnn(embedding(token))
        close(head(states[:, -1]), last(token=token.numpy())["scores"])
        close(head(states), every(token=token.numpy())["scores"])


@pytest.mark.parametrize("kind", KINDS)
def test_both_directions(tmp_path, kind):
    rnn, head = KINDS[kind](6, 5, batch_first=True, bidirectional=True), nn.Linear(10, 3)
    export_recurrent(tmp_path / "head", rnn, head=head, input="x")
    export_recurrent(tmp_path / "every", rnn, input="x", output="h", take="every")
    with_head, every = Reference(tmp_path / "head"), Reference(tmp_path / "every")
    for length in LENGTHS:
        x = torch.randn(1, length, 6)
        states, _ = rnn(x)
        close(head(torch.cat([states[:, -1, :5], states[:, 0, 5:]], 1)), with_head(x=x.numpy())["output"])
        answer = every(x=x.numpy())
        close(states, np.concatenate([answer["h_forward"], answer["h_backward"]], axis=2))


def test_vectors_instead_of_tokens_and_several_answers(tmp_path):
    class Two(nn.Module):
        def forward(self, h):
            return h.argmax(dim=1), h.softmax(dim=1)

    rnn = nn.LSTM(6, 5, 2, batch_first=True)
    export_recurrent(tmp_path, rnn, head=Two(), input="x", output=("best", "scores"))
    x = torch.randn(1, 9, 6)
    answer, expected = Reference(tmp_path)(x=x.numpy()), rnn(x)[0][:, -1]
    assert answer["best"].tolist() == expected.argmax(1).tolist()
    close(expected.softmax(1), answer["scores"])


def test_files_hold_plain_operators_their_weights_and_whole_shapes(tmp_path):
    export_recurrent(tmp_path, nn.LSTM(6, 5), embedding=nn.Embedding(20, 6), head=nn.Linear(5, 3))
    model = onnx.load(tmp_path / "1" / "cell.onnx", load_external_data=False)
    assert {node.op_type for node in model.graph.node} <= {
        "Gather", "Concat", "MatMul", "Add", "Split", "Sigmoid", "Tanh", "Mul", "Constant",
    }  # fmt: skip
    for value in [*model.graph.input, *model.graph.output]:
        batch, *rest = value.type.tensor_type.shape.dim
        assert batch.dim_param == "batch" and all(size.dim_value > 0 for size in rest)
    assert sorted(path.name for path in (tmp_path / "1").iterdir()) == ["cell.onnx", "head.onnx"]


def test_the_trained_modules_are_left_as_they_are(tmp_path):
    rnn, head = nn.LSTM(6, 5), nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 3))
    rnn.train(), head.train()
    export_recurrent(tmp_path, rnn, head=head, input="x")
    assert rnn.training and head.training and all(weight.requires_grad for weight in rnn.parameters())


def test_what_cannot_be_walked_is_refused(tmp_path):
    with pytest.raises(ValueError, match="several layers in both directions"):
        export_recurrent(tmp_path, nn.LSTM(6, 5, 2, bidirectional=True))
    with pytest.raises(ValueError, match="head at every step"):
        export_recurrent(tmp_path, nn.LSTM(6, 5, bidirectional=True), head=nn.Linear(10, 2), take="every")
    with pytest.raises(ValueError, match="proj_size"):
        Layer(nn.LSTM(6, 5, proj_size=2))
    with pytest.raises(ValueError, match="must be 'last' or 'every'"):
        export_recurrent(tmp_path, nn.LSTM(6, 5), take="all")


def test_a_module_that_is_no_cell_is_refused_and_leaves_no_file(tmp_path):
    path = tmp_path / "cell.onnx"
    example = {"x": torch.ones(2, 3)}

    class Sum(nn.Module):
        def forward(self, x):
            return x.sum()

    class Mixed(nn.Module):
        """Rows look at each other, and the exporter fixes how many there were."""

        def forward(self, x):
            return x * len(x)

    with pytest.raises(ValueError, match="first dimension must be the batch"):
        export_cell(Sum(), path, example, ["y"])
    with pytest.raises(ValueError, match="1 tensors for 2 names"):
        export_cell(nn.Identity(), path, example, ["y", "z"])
    with pytest.raises(ValueError, match="differs from PyTorch"):
        export_cell(Mixed(), path, example, ["y"])
    assert list(tmp_path.iterdir()) == []
