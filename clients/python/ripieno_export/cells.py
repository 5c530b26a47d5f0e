"""PyTorch modules to cell files: one step of a recurrent network as ONNX, the batch first and the weights inside.

A *cell* is what a walk runs once per element, per node or per step. `export_cell` writes any module as one; the rest of
this file cuts `nn.LSTM`, `nn.GRU` and `nn.RNN` into steps. `nn.LSTM` as a whole exports to ONNX's own LSTM operator,
which holds the loop over time inside: such a file can only be batched whole, with padding.

The operators are those that every engine has: Gather, Concat, MatMul, Add, Split, Sigmoid, Tanh, Mul.
"""

import os
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

OPSET = 17
# How far ONNX Runtime may be from PyTorch, relative to the largest element and at least to one.
TOLERANCE = 1e-5
BATCH = "batch"


def export_cell(module, path, inputs, outputs):
    """Writes `module` to `path`.

    `inputs` maps each name to an example tensor with the batch first; `module` takes them in this order and returns
    one tensor or several, called `outputs`. The file is put in place only if ONNX Runtime computes from it what
    PyTorch does, with the example and with batches of one and of five rows: a server may be watching.
    """
    module = module.eval()
    example = tuple(inputs.values())
    results = _run(module, example)
    if len(results) != len(outputs):
        raise ValueError(f"{path}: the module returns {len(results)} tensors for {len(outputs)} names, {outputs}")
    for name, tensor in [*inputs.items(), *zip(outputs, results)]:
        if tensor.dim() == 0 or len(tensor) != len(example[0]):
            raise ValueError(f"{path}: {name} has shape {list(tensor.shape)}; its first dimension must be the batch")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".export-") as folder:
        draft = Path(folder) / path.name
        _write(module, example, draft, list(inputs), list(outputs), results)
        _compare(module, draft, inputs, outputs)
        os.replace(draft, path)


def _run(module, tensors):
    with torch.no_grad():
        results = module(*tensors)
    return [results] if isinstance(results, torch.Tensor) else list(results)


def _write(module, example, path, inputs, outputs, results):
    with warnings.catch_warnings(), torch.no_grad():
        # The other exporter needs one more package and rewrites the products into Gemm.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            example,
            str(path),
            input_names=inputs,
            output_names=outputs,
            dynamic_axes={name: {0: BATCH} for name in inputs + outputs},
            opset_version=OPSET,
            do_constant_folding=True,
            dynamo=False,
        )
    model = onnx.load(path)
    # Whatever the exporter could not tell, the results do: of a cell, only the batch varies.
    for value, tensor in zip(model.graph.output, results):
        shape = value.type.tensor_type.shape
        del shape.dim[:]
        for axis, size in enumerate(tensor.shape):
            shape.dim.add(**({"dim_value": size} if axis else {"dim_param": BATCH}))
    missing = set(inputs) - {value.name for value in model.graph.input}
    if missing:
        raise ValueError(f"{path.name}: the module does not use its input {', '.join(sorted(missing))}; leave it out")
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def _compare(module, path, inputs, outputs):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for rows in (None, 1, 5):
        feed = {name: tensor if rows is None else _rows(tensor, rows) for name, tensor in inputs.items()}
        expected = _run(module, tuple(feed.values()))
        found = session.run(outputs, {name: tensor.numpy() for name, tensor in feed.items()})
        for name, a, b in zip(outputs, expected, found):
            difference = relative_difference(a.numpy(), b)
            if difference > TOLERANCE:
                raise ValueError(f"{path.name}: {name} of ONNX Runtime differs from PyTorch's by {difference:.1e}")


def _rows(tensor, count):
    return tensor[[row % len(tensor) for row in range(count)]].contiguous()


def relative_difference(expected, found):
    """The largest difference of two tensors, relative to the largest element and at least to one."""
    if expected.shape != found.shape:
        return float("inf")
    if not expected.size:
        return 0.0
    a, b = expected.astype(np.float64), found.astype(np.float64)
    return float(np.abs(a - b).max() / max(1.0, np.abs(a).max()))


class StepCell(nn.Module):
    """One step of one or several layers of a recurrent network in one direction: (element, states) to new states.

    `layers` are `Layer`s; `embedding` turns the element into the first one's input, and nothing does if it is None.
    """

    def __init__(self, layers, embedding=None):
        super().__init__()
        self.layers, self.embedding = nn.ModuleList(layers), embedding

    @property
    def state_names(self):
        """h and c, or h0, c0, h1, c1, … if there are several layers."""
        kinds = self.layers[0].kinds
        if len(self.layers) == 1:
            return list(kinds)
        return [f"{kind}{index}" for index in range(len(self.layers)) for kind in kinds]

    @property
    def output_index(self):
        """Which of the new states is the output of the step: the last layer's h."""
        return (len(self.layers) - 1) * len(self.layers[0].kinds)

    def forward(self, element, *states):
        x = element if self.embedding is None else self.embedding(element)
        new, width = [], len(self.layers[0].kinds)
        for index, layer in enumerate(self.layers):
            new.extend(layer(x, *states[index * width : (index + 1) * width]))
            x = new[-width]
        return tuple(new)

    def example(self, element=None, rows=2):
        """Example tensors by name: the element, then the states. Without embedding the element is a row of the
        first layer's input size."""
        if element is None:
            element = (
                torch.zeros(rows, dtype=torch.long) if self.embedding else torch.zeros(rows, self.layers[0].inputs)
            )
        states = [torch.full((rows, layer.hidden), 0.25) for layer in self.layers for _ in layer.kinds]
        return element, dict(zip(self.state_names, states))


class Layer(nn.Module):
    """One layer and direction of an `nn.LSTM`, `nn.GRU` or `nn.RNN`, as one step over a batch of rows."""

    def __init__(self, rnn, index=0, backward=False):
        super().__init__()
        if getattr(rnn, "proj_size", 0):
            raise ValueError("an LSTM with proj_size cannot be exported; put the projection into a module of its own")
        self.mode, self.hidden = rnn.mode, rnn.hidden_size
        self.kinds = ("h", "c") if rnn.mode == "LSTM" else ("h",)
        suffix = f"_l{index}" + ("_reverse" if backward else "")
        weights = [getattr(rnn, f"weight_{side}{suffix}").detach().float().cpu() for side in ("ih", "hh")]
        zeros = torch.zeros(len(weights[0]))
        biases = [
            getattr(rnn, f"bias_{side}{suffix}").detach().float().cpu() if rnn.bias else zeros for side in ("ih", "hh")
        ]
        self.inputs = weights[0].shape[1]
        self._hold(weights, biases)

    def _hold(self, weights, biases):
        """One product for input and state together; a GRU needs them apart, as a gate stands in between."""
        if self.mode == "GRU":
            for side, weight, bias in zip(("x", "h"), weights, biases):
                self.register_buffer(f"weight_{side}", weight.T.contiguous())
                self.register_buffer(f"bias_{side}", bias.clone())
        else:
            self.register_buffer("weight", torch.cat(weights, dim=1).T.contiguous())
            self.register_buffer("bias", biases[0] + biases[1])

    def forward(self, x, h, *c):
        if self.mode == "GRU":
            return (self._gru(x, h),)
        rows = torch.cat([x, h], dim=1) @ self.weight + self.bias
        if self.mode == "LSTM":
            enter, forget, update, leave = rows.split([self.hidden] * 4, dim=1)
            c_next = forget.sigmoid() * c[0] + enter.sigmoid() * update.tanh()
            return leave.sigmoid() * c_next.tanh(), c_next
        return (rows.tanh() if self.mode == "RNN_TANH" else rows.relu(),)

    def _gru(self, x, h):
        x_reset, x_keep, x_new = (x @ self.weight_x + self.bias_x).split([self.hidden] * 3, dim=1)
        h_reset, h_keep, h_new = (h @ self.weight_h + self.bias_h).split([self.hidden] * 3, dim=1)
        keep = (x_keep + h_keep).sigmoid()
        new = (x_new + (x_reset + h_reset).sigmoid() * h_new).tanh()
        return new + keep * (h - new)
