"""A model in cells, run by ONNX Runtime alone: one request, one cell application at a time, no batching, no server.

    reference = Reference("models/repository/dates")
    answer = reference(token=np.array([[50, 48, 32]]))["tokens"]

It reads the same `model.toml` and is written to be compared with: what a server answers under batching must be what
this gives. Neither PyTorch nor Ripieno is needed.
"""

from pathlib import Path

import numpy as np
import onnxruntime

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}
ABSENT = -1


class Reference:
    """One model folder, its highest version."""

    def __init__(self, folder, version=None):
        folder = Path(folder)
        self.settings = tomllib.loads((folder / "model.toml").read_text())
        version = version or max(int(path.name) for path in folder.iterdir() if path.name.isdigit())
        self.cells = [_Cell(block, folder / str(version)) for block in self.settings["block"]]
        self.walk = self.settings["walk"]

    def __call__(self, **request):
        walk = {
            "repeat": self._line,
            "stacked": self._line,
            "bidirectional": self._both_ways,
            "encode-decode": self._encode_decode,
            "tree": self._tree,
            "graph": self._graph,
        }[self.walk]
        steps = walk(request)
        self._heads(steps, request)
        return {output["name"]: self._output(output, steps) for output in self.settings["output"]}

    def _line(self, request):
        """Every step runs all layers, the lower ones first."""
        cells = [cell for cell in self.cells if not cell.once]
        steps = {cell.name: [] for cell in cells}
        for index in range(_length(request)):
            for cell in cells:
                cell.step(steps, _element(request, index))
        return steps

    def _both_ways(self, request):
        forward, backward = self.cells[:2]
        steps = {forward.name: [], backward.name: []}
        for index in range(_length(request)):
            forward.step(steps, _element(request, index))
            backward.step(steps, _element(request, _length(request) - 1 - index))
        return steps

    def _encode_decode(self, request):
        encoder, decoder = self.cells[:2]
        steps = {encoder.name: [], decoder.name: []}
        for index in range(_length(request)):
            encoder.step(steps, _element(request, index))
        limit = self.settings.get("max_steps", _length(request) + self.settings.get("extra_steps", 50))
        for _ in range(limit):
            decoder.step(steps, {})
            if steps[decoder.name][-1][decoder.end].any():
                break
        return steps

    def _tree(self, request):
        leaf, internal = self.cells[:2]
        table = request["children"][0]
        return self._nodes(request, [leaf if (row == ABSENT).all() else internal for row in table])

    def _graph(self, request):
        return self._nodes(request, [self.cells[index] for index in request["cell"][0]])

    def _nodes(self, request, cells):
        """Children before parents, whatever the order of the table."""
        table, done = request["children"][0], {}
        elements = {name: tensor for name, tensor in request.items() if name not in ("children", "cell")}
        waiting = list(range(len(table)))
        while waiting:
            ready = [node for node in waiting if all(child == ABSENT or child in done for child in table[node])]
            if not ready:
                raise ValueError("the table of nodes has a cycle or names a node that is not there")
            for node in ready:
                below = {index: done[child] for index, child in enumerate(table[node]) if child != ABSENT}
                done[node] = cells[node].at_node(below, _element(elements, node))
            waiting = [node for node in waiting if node not in done]
        # The answer of a graph is that of the table's last node, a tree's that of its root, wherever it stands.
        inner = {child for row in table for child in row}
        root = len(table) - 1 if self.walk == "graph" else next(node for node in range(len(table)) if node not in inner)
        return {"root": [done[root]]}

    def _heads(self, steps, request):
        for cell in self.cells:
            if cell.name not in steps and (cell.once or self.walk in ("bidirectional",)):
                steps[cell.name] = []
                cell.step(steps, request)

    def _output(self, output, steps):
        block, tensor = output["from"].split(".")
        if output.get("take", "last") == "last":
            return steps[block][-1][tensor]
        every = [step[tensor] for step in steps[block]]
        if self.walk == "bidirectional" and block == self.cells[1].name:
            every.reverse()
        return np.stack(every, axis=1)


class _Cell:
    """A session and the sources of its inputs."""

    def __init__(self, block, folder):
        self.name, self.end, self.once = block["name"], block.get("end"), block.get("once", False)
        path = folder / block.get("file", f"{self.name}.onnx")
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.outputs = [output.name for output in self.session.get_outputs()]
        self.inputs = {value.name: value for value in self.session.get_inputs()}
        self.sources = {name: block.get("inputs", {}).get(name, "request") for name in self.inputs}
        self.initial = block.get("initial", {})

    def step(self, steps, element):
        """Runs once more, after the steps there have been, and adds to them."""
        feed = {name: self._value(name, source, steps, element) for name, source in self.sources.items()}
        steps[self.name].append(self._run(feed))

    def at_node(self, children, element):
        """Runs at a node whose children have these outputs."""
        feed = {}
        for name, source in self.sources.items():
            if source.startswith("child"):
                index, tensor = source.removeprefix("child").split(".")
                child = children.get(int(index))
                feed[name] = self._filled(name, 0) if child is None else child[tensor]
            else:
                feed[name] = self._requested(name, source, element)
        return self._run(feed)

    def _value(self, name, source, steps, element):
        if source.startswith("request"):
            return self._requested(name, source, element)
        block, tensor = source.split(".")
        if block != "previous":
            return steps[block][-1][tensor]
        if steps[self.name]:
            return steps[self.name][-1][tensor]
        first = self.initial.get(name, 0)
        if isinstance(first, str):
            block, tensor = first.split(".")
            return steps[block][-1][tensor]
        return self._filled(name, first)

    def _requested(self, name, source, element):
        return element[source.partition(":")[2] or name].astype(self._type(name))

    def _filled(self, name, number):
        return np.full([1, *self.inputs[name].shape[1:]], number, self._type(name))

    def _type(self, name):
        return TYPES[self.inputs[name].type]

    def _run(self, feed):
        return dict(zip(self.outputs, self.session.run(self.outputs, feed)))


def _length(request):
    return next(iter(request.values())).shape[1]


def _element(request, index):
    """[1, length, ...] to the cell's [1, ...]."""
    return {name: tensor[:, index] for name, tensor in request.items()}
