"""How far cellular batching of trees can get ahead of merging graphs on a machine, whoever schedules.

    python clients/python/random_cells.py FOLDER --hidden 1024 --inputs 1024
    python clients/python/tree_bound.py FOLDER/treelstm crates/workload/data/sst-test.csv

times both cells at each batch size, as processor time of one thread of ONNX Runtime, the least of many runs, so that other work on
the machine disturbs it little. From these follow, for a largest batch: how many trees a second the cells give if every batch is full,
and how many if sets of 64 trees are merged and run level by level, and nothing else takes any time. Needs numpy and onnxruntime.
"""

import argparse
import pathlib
import random
import time

import numpy as np
import onnxruntime

BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
SET = 64
SETS = 60


def times_ms(path, seconds):
    """The time of a cell by batch size."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found = []
    for batch in BATCHES:
        inputs = {tensor.name: np.random.rand(batch, tensor.shape[1]).astype(np.float32) for tensor in session.get_inputs()}
        runs, until = [], time.monotonic() + seconds
        while len(runs) < 5 or time.monotonic() < until:
            begun = time.thread_time()
            session.run(None, inputs)
            runs.append(time.thread_time() - begun)
        found.append(min(runs) * 1e3)
    return found


def shape(tree):
    """How many leaves a tree has, and of its inner nodes the levels above the leaves."""
    heights, leaves, inner = [], 0, []
    for letter in tree:
        if letter == "(":
            heights.append(0)
            continue
        height = 0 if letter == "x" else heights.pop() + 1
        leaves += letter == "x"
        if letter == ")":
            inner.append(height)
        if heights:
            heights[-1] = max(heights[-1], height)
    return leaves, inner


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("trees", type=pathlib.Path, help="nested brackets, one tree a line")
    parser.add_argument("--seconds", type=float, default=2.5, help="for each cell and batch size")
    options = parser.parse_args()
    trees = [shape(line.strip()) for line in options.trees.read_text().splitlines() if line.startswith(("x", "("))]
    leaf, internal = (times_ms(options.model / "1" / f"{name}.onnx", options.seconds) for name in ("leaf", "internal"))
    print("| rows | leaf, ms | us a row | internal, ms | us a row |\n|---|---|---|---|---|")
    for batch, a, b in zip(BATCHES, leaf, internal):
        print(f"| {batch} | {a:.2f} | {a / batch * 1e3:.0f} | {b:.2f} | {b / batch * 1e3:.0f} |")
    nodes = np.mean([leaves for leaves, _ in trees]), np.mean([len(inner) for _, inner in trees])
    print(f"\n{nodes[0]:.1f} leaves and {nodes[1]:.1f} inner nodes a tree\n")
    print("| largest batch | full batches, trees/s | merged, trees/s | rows a task | most that a scheduler can gain |\n|---|---|---|---|---|")
    for cap in BATCHES[4:]:
        in_tasks = lambda count: [cap] * (count // cap) + [count % cap] * (count % cap > 0)
        cost = lambda times, rows: float(np.interp(rows, BATCHES, times))
        a_row = [min(cost(times, batch) / batch for batch in BATCHES if batch <= cap) for times in (leaf, internal)]
        best = nodes[0] * a_row[0] + nodes[1] * a_row[1]
        random.seed(1)
        spent, tasks, rows = 0.0, 0, 0
        for _ in range(SETS):
            chosen = random.sample(trees, SET)
            levels = np.bincount([height for _, inner in chosen for height in inner])
            batches = [(leaf, size) for size in in_tasks(sum(leaves for leaves, _ in chosen))]
            batches += [(internal, size) for count in levels[1:] for size in in_tasks(int(count))]
            spent += sum(cost(*batch) for batch in batches)
            tasks, rows = tasks + len(batches), rows + sum(size for _, size in batches)
        merged = spent / (SETS * SET)
        print(f"| {cap} | {1e3 / best:.0f} | {1e3 / merged:.0f} | {rows / tasks:.0f} | {merged / best:.2f} |")


if __name__ == "__main__":
    main()
