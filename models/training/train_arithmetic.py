#!/usr/bin/env python3
"""Train, export and check "arithmetic": expressions modulo 10 as binary trees, with a tree LSTM."""

import sys

import numpy as np

import arithmetic_data
import cell_models

NAME = "arithmetic"
STEPS = 3000
REQUIRED = 0.95
BATCH = 64
EMBEDDING, HIDDEN = 16, 96
TRAIN, HELD = 60_000, 4000
FEWEST, MOST = 4, 16
DATA_SEED, HELD_SEED, SAMPLE_SEED = 51, 52, 53
SAMPLES = 48


def build():
    from ripieno_export.tree_lstm import TreeLstm
    from torch import nn

    tree = TreeLstm(nn.Embedding(cell_models.CODES, EMBEDDING), HIDDEN)
    return nn.ModuleDict({"tree": tree, "head": nn.Linear(HIDDEN, 10)})


def levels(trees):
    """All nodes of a batch by height, as tensors: (tokens, left, right, values), children as indices into the nodes
    before. Leaves are the first level and have none."""
    import torch

    by_height = {}

    def visit(tree):
        below = [visit(child) for child in arithmetic_data.children(tree)]
        height = 1 + max((h for h, _ in below), default=-1)
        row = by_height.setdefault(height, [])
        row.append((arithmetic_data.token(tree), *below, arithmetic_data.value(tree)))
        return height, len(row) - 1

    for tree in trees:
        visit(tree)
    starts = np.concatenate([[0], np.cumsum([len(by_height[h]) for h in range(len(by_height))])])

    def place(node):
        return int(starts[node[0]]) + node[1]

    result = []
    for height in range(len(by_height)):
        rows = [(row[0], *map(place, row[1:-1]), row[-1]) for row in by_height[height]]
        result.append([torch.tensor(column) for column in zip(*rows)])
    return result


def states_of(net, batch):
    import torch

    h, c = net["tree"].leaf(batch[0][0])
    for tokens, left, right, _ in batch[1:]:
        new = net["tree"].internal(tokens, h[left], c[left], h[right], c[right])
        h, c = torch.cat([h, new[0]]), torch.cat([c, new[1]])
    return h


def loss_of(net, batch):
    """Of every node: the value of each part of an expression is known, too."""
    import torch
    import torch.nn.functional as F

    return F.cross_entropy(net["head"](states_of(net, batch)), torch.cat([level[-1] for level in batch]))


def train(args):
    trees = arithmetic_data.examples(TRAIN, DATA_SEED, 1, MOST, held=False)
    batches = [levels(trees[i : i + BATCH]) for i in range(0, TRAIN, BATCH)]
    cell_models.seed_torch(args.seed, args.threads)
    net = build()
    cell_models.fit(net, lambda i: loss_of(net, batches[i]), len(batches), steps=args.steps, lr=4e-3, seed=args.seed)
    return net


def export(net):
    from heads import Best
    from ripieno_export.models import export_tree

    export_tree(
        cell_models.folder(NAME),
        leaf=net["tree"].leaf,
        internal=net["tree"].internal,
        hidden=HIDDEN,
        head=Best(net["head"]),
        output=("value", "logits"),
        max_length=127,
        max_batch=64,
        comment="Expressions modulo 10 as binary trees: see ../../README.md.",
    )


def request(tree):
    from ripieno_export.trees import node_table

    table = node_table(tree, arithmetic_data.children, arity=2)
    token = cell_models.request("token", table.per_node(arithmetic_data.token))
    return [token, cell_models.request("children", table.children)]


def held_out(count, seed):
    trees = arithmetic_data.examples(count, seed, FEWEST, MOST, held=True)
    return [(arithmetic_data.text(tree), request(tree), str(arithmetic_data.value(tree))) for tree in trees]


def expected(net, count):
    """What torch makes of the first held-out trees."""
    import torch

    pairs = []
    for tree in arithmetic_data.examples(count, HELD_SEED, FEWEST, MOST, held=True):
        with torch.no_grad():
            logits = net["head"](states_of(net, levels([tree])))[-1:]
        pairs.append((request(tree), {"value": logits.argmax(1).numpy(), "logits": logits.numpy()}))
    return pairs


def main():
    args = cell_models.parse_args(__doc__, STEPS, REQUIRED)
    rows = held_out(HELD, HELD_SEED)
    samples = cell_models.make_samples(NAME, "value", "number", held_out(SAMPLES, SAMPLE_SEED))
    if not args.check:
        net = train(args)
        export(net)
        cell_models.compare(NAME, expected(net, 64))
        cell_models.write_samples(samples)
    return cell_models.check(NAME, rows, samples, REQUIRED)


if __name__ == "__main__":
    sys.exit(main())
