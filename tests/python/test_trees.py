"""The table of nodes from nested lists: what a client sends to a tree model. No server is needed."""

import sys

import numpy as np
import pytest

from ripieno_export.trees import ABSENT, node_table


def test_children_come_before_parents_and_the_root_last():
    table = node_table([["the", "cat"], "sleeps"])
    assert table.nodes == ["the", "cat", ["the", "cat"], "sleeps", [["the", "cat"], "sleeps"]]
    expected = [[-1, -1], [-1, -1], [0, 1], [-1, -1], [2, 3]]
    assert table.children.tolist() == [expected]
    assert table.children.dtype == np.int64


def test_a_leaf_alone_is_a_tree():
    table = node_table("word")
    assert table.nodes == ["word"]
    assert table.children.tolist() == [[[ABSENT]]]
    assert node_table("word", arity=2).children.tolist() == [[[ABSENT, ABSENT]]]


def test_missing_children_are_absent():
    table = node_table([1, [2], [3, 4, 5]])
    assert table.children.shape == (1, 8, 3)
    assert table.children[0, 2].tolist() == [1, ABSENT, ABSENT]
    assert table.children[0, -1].tolist() == [0, 2, 6]


def test_values_of_the_nodes_follow_the_table():
    table = node_table([7, [8, 9]])
    token = table.per_node(lambda node: 0 if isinstance(node, list) else node)
    assert token.tolist() == [[7, 8, 9, 0, 0]]
    vector = table.per_node(lambda node: [1.0, 2.0], np.float32)
    assert vector.shape == (1, 5, 2) and vector.dtype == np.float32


def test_internal_nodes_may_hold_something():
    tree = ("+", 1, ("*", 2, 3))
    table = node_table(tree, children=lambda node: node[1:] if isinstance(node, tuple) else ())
    assert table.nodes == [1, 2, 3, ("*", 2, 3), tree]
    assert table.children.tolist() == [[[-1, -1], [-1, -1], [-1, -1], [1, 2], [0, 3]]]


def test_the_same_subtree_twice_is_two_nodes():
    pair = [1, 2]
    table = node_table([pair, pair])
    assert table.children[0].tolist() == [[-1, -1], [-1, -1], [0, 1], [-1, -1], [-1, -1], [3, 4], [2, 5]]


def test_a_tree_deeper_than_the_interpreter_recurses():
    depth = 10 * sys.getrecursionlimit()
    tree = 0
    for value in range(depth):
        tree = [tree, value]
    table = node_table(tree)
    assert table.children.shape == (1, 2 * depth + 1, 2)
    assert table.children[0, -1].tolist() == [2 * depth - 2, 2 * depth - 1]


def test_what_is_no_tree_is_refused():
    knot = [1]
    knot.append([knot])
    with pytest.raises(ValueError, match="contains itself"):
        node_table(knot)
    with pytest.raises(ValueError, match="empty list"):
        node_table([1, []])
    with pytest.raises(ValueError, match="3 children, and the arity is 2"):
        node_table([1, 2, 3], arity=2)
