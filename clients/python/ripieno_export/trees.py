"""Nested lists to the table of nodes that a tree model takes.

    table = node_table([["the", "cat"], "sleeps"])
    table.children      # INT64 [1, 5, 2]: the children of each node as indices, -1 where there is none
    table.nodes         # 5 subtrees, in the order of the table; a leaf is whatever stood there

A list (or tuple) is an internal node and its items are its children; anything else is a leaf. Children come before
their parents, so that the last node is the root. Values of the nodes go into tensors of their own, in the same order:

    token = table.per_node(lambda node: 0 if isinstance(node, list) else vocabulary[node])

For trees whose internal nodes hold something, too, say how to look into one:

    node_table(("+", 1, ("*", 2, 3)), children=lambda node: node[1:] if isinstance(node, tuple) else ())

Only NumPy is needed.
"""

from dataclasses import dataclass

import numpy as np

# What an absent child is in the table.
ABSENT = -1


@dataclass(frozen=True)
class NodeTable:
    """A tree, or several under no common root, as a request carries it."""

    nodes: list
    children: np.ndarray

    def per_node(self, value, dtype=np.int64):
        """A tensor [1, nodes, ...] with `value(node)` of each node."""
        return np.array([value(node) for node in self.nodes], dtype)[np.newaxis]


def node_table(tree, children=None, arity=None):
    """The table of `tree`. `arity` is the width of the table, by default that of the widest node.

    Depth is not limited by Python's recursion. What the server refuses is refused here: a node that contains itself,
    a node with more children than the arity, an empty list.
    """
    look = children or _items
    nodes, rows = _post_order(tree, look)
    widest = max((len(row) for row in rows), default=0)
    width = arity if arity is not None else max(widest, 1)
    if widest > width:
        raise ValueError(f"a node has {widest} children, and the arity is {width}")
    table = np.full((1, len(nodes), width), ABSENT, np.int64)
    for index, row in enumerate(rows):
        table[0, index, : len(row)] = row
    return NodeTable(nodes, table)


def _items(node):
    """A list's items; none for a leaf."""
    if not isinstance(node, (list, tuple)):
        return ()
    if not node:
        raise ValueError("an empty list is neither a leaf nor a node with children")
    return node


def _post_order(tree, look):
    """Nodes with children before parents, and the children of each as indices."""
    nodes, rows, done, open_ids = [], [], [[]], set()
    stack = [(tree, None)]
    while stack:
        node, below = stack.pop()
        if below is None:
            if id(node) in open_ids:
                raise ValueError("a node contains itself")
            below = list(look(node))
            done.append([])
            if below:
                open_ids.add(id(node))
            stack.append((node, below))
            stack.extend((child, None) for child in reversed(below))
        else:
            open_ids.discard(id(node))
            rows.append(done.pop())
            done[-1].append(len(nodes))
            nodes.append(node)
    return nodes, rows
