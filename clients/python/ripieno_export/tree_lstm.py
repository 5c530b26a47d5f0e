"""A tree LSTM to train: the N-ary one of Tai, Socher and Manning (2015), as two cells that share nothing but shapes.

    tree = TreeLstm(embedding=torch.nn.Embedding(128, 16), hidden=64, arity=2)
    h, c = tree.leaf(token)                      # token [batch]
    h, c = tree.internal(token, h0, c0, h1, c1)  # the element of the node itself, then the states of its children

`export_tree` takes both cells as they are. Each matrix product is one `MatMul` and one `Add`, with the inputs side by
side: such a product over many rows is what batches make cheap.
"""

import math

import torch
from torch import nn


class TreeLstm(nn.Module):
    """Leaf and internal cell over one embedding of the nodes' elements."""

    def __init__(self, embedding, hidden, arity=2):
        super().__init__()
        width = embedding.embedding_dim
        self.hidden, self.arity = hidden, arity
        self.leaf = LeafCell(embedding, width, hidden)
        self.internal = InternalCell(embedding, width, hidden, arity)


class LeafCell(nn.Module):
    """Element to state: gates without anything to forget."""

    def __init__(self, embedding, width, hidden):
        super().__init__()
        self.embedding, self.hidden = embedding, hidden
        self.weight, self.bias = _dense(width, 3 * hidden)

    def forward(self, element):
        enter, leave, update = _gates(self.embedding(element), self, 3)
        c = enter.sigmoid() * update.tanh()
        return leave.sigmoid() * c.tanh(), c


class InternalCell(nn.Module):
    """Element and the states of all children to state, with a forget gate for each child."""

    def __init__(self, embedding, width, hidden, arity):
        super().__init__()
        self.embedding, self.hidden, self.arity = embedding, hidden, arity
        self.weight, self.bias = _dense(width + arity * hidden, (3 + arity) * hidden)

    def forward(self, element, *states):
        """`states` are h and c of the first child, then of the second, and so on."""
        rows = torch.cat([self.embedding(element), *states[0::2]], dim=1)
        enter, leave, update, *forget = _gates(rows, self, 3 + self.arity)
        c = enter.sigmoid() * update.tanh()
        for gate, child in zip(forget, states[1::2]):
            c = c + gate.sigmoid() * child
        return leave.sigmoid() * c.tanh(), c


def _dense(inputs, outputs):
    limit = 1 / math.sqrt(inputs)
    return nn.Parameter(torch.empty(inputs, outputs).uniform_(-limit, limit)), nn.Parameter(torch.zeros(outputs))


def _gates(rows, cell, count):
    return (rows @ cell.weight + cell.bias).split([cell.hidden] * count, dim=1)
