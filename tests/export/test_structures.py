"""Encoder-decoder networks and trees: the cells give what a loop in PyTorch gives."""

import pytest
import torch
from torch import nn

from ripieno_export.cells import relative_difference
from ripieno_export.models import export_encode_decode, export_tree
from ripieno_export.reference import Reference
from ripieno_export.tree_lstm import TreeLstm
from ripieno_export.trees import node_table

START, END = 1, 2


def half(kind, layers):
    return nn.Embedding(12, 6), kind(6, 8, layers, batch_first=True)


def decode(encoder, decoder, head, token, limit):
    """Feed previous, one sequence, in PyTorch."""
    _, state = encoder[1](encoder[0](token))
    last, answer = torch.tensor([[START]]), []
    while len(answer) < limit and (not answer or answer[-1] != END):
        states, state = decoder[1](decoder[0](last), state)
        last = head(states).argmax(2)
        answer.append(int(last))
    return answer


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("limit", [{"max_steps": 15}, {"extra_steps": 4}])
def test_feed_previous_until_the_end(tmp_path, kind, layers, limit):
    encoder, decoder, head = half(kind, layers), half(kind, layers), nn.Linear(8, 12)
    export_encode_decode(tmp_path, encoder=encoder, decoder=decoder, head=head, start=START, end=END, **limit)
    reference = Reference(tmp_path)
    for length in range(1, 40):
        token = torch.randint(3, 12, (1, length))
        most = limit.get("max_steps", length + limit.get("extra_steps", 0))
        expected = decode(encoder, decoder, head, token, most)
        assert reference(token=token.numpy())["tokens"].tolist() == [expected]


def test_the_end_token_ends_it(tmp_path):
    encoder, decoder, head = half(nn.GRU, 1), half(nn.GRU, 1), nn.Linear(8, 12)
    with torch.no_grad():
        head.bias[END] += 10
    export_encode_decode(tmp_path, encoder=encoder, decoder=decoder, head=head, start=START, end=END)
    assert Reference(tmp_path)(token=torch.tensor([[5, 6, 7]]).numpy())["tokens"].tolist() == [[END]]


def test_halves_that_do_not_fit_are_refused(tmp_path):
    def export(encoder, decoder, **limit):
        export_encode_decode(
            tmp_path, encoder=encoder, decoder=decoder, head=nn.Linear(8, 12), start=START, end=END, **limit
        )

    with pytest.raises(ValueError, match="same layers and hidden sizes"):
        export(half(nn.LSTM, 1), half(nn.LSTM, 2))
    with pytest.raises(ValueError, match="same layers and hidden sizes"):
        export(half(nn.LSTM, 1), half(nn.GRU, 1))
    with pytest.raises(ValueError, match="give one of them"):
        export(half(nn.GRU, 1), half(nn.GRU, 1), extra_steps=3, max_steps=3)
    both_ways = (nn.Embedding(12, 6), nn.GRU(6, 8, bidirectional=True))
    with pytest.raises(ValueError, match="both directions"):
        export(both_ways, both_ways)


def token_of(node):
    return len(node) if isinstance(node, tuple) else node


def in_pytorch(tree, node):
    token = torch.tensor([token_of(node)])
    if not isinstance(node, tuple):
        return tree.leaf(token)
    return tree.internal(token, *(state for child in node for state in in_pytorch(tree, child)))


@pytest.mark.parametrize(
    "example", [5, (1, 2), ((1, 2), 3), (0, (1, ((2, 3), (4, (5, 6))))), (((1, 2), (3, 4)), ((5, 6), (7, 8)))]
)
def test_a_tree_lstm(tmp_path, example):
    tree, head = TreeLstm(nn.Embedding(20, 6), hidden=8), nn.Linear(8, 3)
    export_tree(tmp_path / "head", leaf=tree.leaf, internal=tree.internal, hidden=8, head=head, output="scores")
    export_tree(tmp_path / "state", leaf=tree.leaf, internal=tree.internal, hidden=8)
    table = node_table(example, arity=2)
    request = {"token": table.per_node(token_of), "children": table.children}
    with torch.no_grad():
        h, _ = in_pytorch(tree, example)
        scores = head(h)
    assert relative_difference(scores.numpy(), Reference(tmp_path / "head")(**request)["scores"]) < 1e-5
    assert relative_difference(h.numpy(), Reference(tmp_path / "state")(**request)["output"]) < 1e-5


def test_cells_of_ones_own_with_other_arity_and_states(tmp_path):
    """Three children, one state, nothing in the internal nodes, vectors in the leaves."""

    class Leaf(nn.Module):
        def forward(self, x):
            return x.tanh()

    class Sum(nn.Module):
        def forward(self, a, b, c):
            return (a + b - c).tanh()

    options = {"hidden": 4, "arity": 3, "states": ("v",), "internal_element": False, "input": "x"}
    export_tree(tmp_path, leaf=Leaf(), internal=Sum(), element=torch.zeros(2, 4), **options)
    table = node_table([1.0, [2.0, 3.0, 4.0], 5.0])
    x = table.per_node(lambda node: [0.0 if isinstance(node, list) else node] * 4, "float32")
    leaf = {value: torch.tensor(value).tanh() for value in (1.0, 2.0, 3.0, 4.0, 5.0)}
    expected = (leaf[1.0] + (leaf[2.0] + leaf[3.0] - leaf[4.0]).tanh() - leaf[5.0]).tanh()
    found = Reference(tmp_path)(x=x, children=table.children)["output"]
    assert relative_difference(expected.expand(1, 4).numpy(), found) < 1e-5
