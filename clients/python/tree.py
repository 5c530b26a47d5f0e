#!/usr/bin/env python3
"""Trees to a tree model, over HTTP: arithmetic modulo 10, by a network that learnt it.

    pip install tritonclient[http] numpy
    python tree.py "(3+4)*2" "9-(1+1)*8"

One request is one tree: a table of nodes with the indices of each node's children, which `node_table` makes, and one
tensor with what the nodes hold. The server runs the cells of all trees that it has, leaves with leaves and nodes with
nodes of any height.
"""

import argparse
import ast

import tritonclient.http as triton
from ripieno_export.trees import node_table

OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}


def parse(text):
    """An expression of single digits to nested tuples: (operator, left, right)."""

    def tree(node):
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)], tree(node.left), tree(node.right)
        if isinstance(node, ast.Constant) and node.value in range(10):
            return node.value
        raise SystemExit(f"{text}: single digits under +, - and * are all that the model knows")

    return tree(ast.parse(text, mode="eval").body)


def start(client, tree):
    """Sends a tree and does not wait for the answer."""
    table = node_table(tree, children=lambda node: node[1:] if isinstance(node, tuple) else (), arity=2)
    codes = table.per_node(lambda node: ord(node[0] if isinstance(node, tuple) else str(node)))
    inputs = []
    for name, array in (("token", codes), ("children", table.children)):
        inputs.append(triton.InferInput(name, array.shape, "INT64"))
        inputs[-1].set_data_from_numpy(array)
    return client.async_infer("arithmetic", inputs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("expressions", nargs="*", default=["(3+4)*2", "9-(1+1)*8"])
    parser.add_argument("--url", default="localhost:8000", help="HTTP address, default: %(default)s")
    args = parser.parse_args()
    with triton.InferenceServerClient(args.url, concurrency=16) as client:
        for text, pending in [(text, start(client, parse(text))) for text in args.expressions]:
            print(f"{text} = {int(pending.get_result().as_numpy('value')[0])} (mod 10)")


if __name__ == "__main__":
    main()
