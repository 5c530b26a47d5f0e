"""The models in cells that are measured: LSTMs of random weights, cells with almost no work, and an LSTM over whole sequences.

A bundle carries the files of the cells, so that beside the GPU nothing builds them. Elsewhere they are built, which needs the
Python packages numpy and onnx; so does the LSTM over whole sequences, which also needs ONNX Runtime to run.
"""

import os
import shutil

from bundle import ROOT

HIDDEN, SMALL, TINY, IDS = 1024, 64, 4, 1000
PACKED = ROOT / "built"
# Steps of a weight in its standard deviation. Weights of few values pack well, and cost a GPU the
# same.
LEVELS = 2


def lstm(hidden):
    """An LSTM cell of random weights."""
    import net
    import numpy as np

    class Coarse(net.Net):
        def weight(self, *shape, scale):
            step = 2.0 ** np.floor(np.log2(scale / LEVELS))
            return self.const(np.round(self.random.standard_normal(shape) * scale / step) * step, np.float32)

    made = Coarse("lstm")
    made.input("token", net.INT64, "batch")
    states = [made.input(name, net.FLOAT, "batch", hidden) for name in ("h", "c")]
    x = made.op("Gather", made.weight(IDS, hidden, scale=1.0), "token", axis=0)
    gates = made.linear(made.op("Concat", x, states[0], axis=1), 2 * hidden, 4 * hidden)
    parts = made.op("Split", gates, made.const([hidden] * 4), outputs=4, axis=1)
    i, o, f = (made.op("Sigmoid", part) for part in parts[:3])
    new = made.op("Mul", i, made.op("Tanh", parts[3]))
    c_next = made.op("Add", made.op("Mul", f, states[1]), new)
    made.output(made.op("Mul", o, made.op("Tanh", c_next)), "h_next", net.FLOAT, "batch", hidden)
    made.output(c_next, "c_next", net.FLOAT, "batch", hidden)
    return made


def sums(width):
    """A cell without a product: one kernel on a GPU."""
    import net

    made = net.Net("sums")
    made.input("token", net.INT64, "batch")
    made.input("h", net.FLOAT, "batch", width)
    x = made.op("Gather", made.weight(IDS, width, scale=1.0), "token", axis=0)
    made.output(made.op("Tanh", made.op("Add", x, "h")), "h_next", net.FLOAT, "batch", width)
    return made


def whole_lstm(hidden):
    """The LSTM over a whole sequence, padded behind its end with zeros."""
    import net
    import numpy as np

    made = net.Net("lstm")
    tokens = made.input("token", net.INT64, "batch", "length")
    real = made.op("Cast", made.op("Greater", tokens, made.const(0)), to=net.onnx.TensorProto.INT32)
    # A sequence of zeros alone counts as one of a single token.
    lengths = made.op("Max", made.op("ReduceSum", real, made.const([1]), keepdims=0), made.const(1, np.int32))
    x = made.op("Transpose", made.op("Gather", made.weight(IDS, hidden, scale=1.0), tokens, axis=0), perm=[1, 0, 2])
    scale = 1 / np.sqrt(hidden)
    factors = [made.weight(1, 4 * hidden, hidden, scale=scale) for _ in range(2)]
    _, last = made.op("LSTM", x, *factors, made.weight(1, 8 * hidden, scale=0.1), lengths, outputs=2, hidden_size=hidden)
    made.output(made.op("Squeeze", last, made.const([0])), "h", net.FLOAT, "batch", hidden)
    return made


FILES = {
    "lstm": lambda: lstm(HIDDEN),
    "lstm-small": lambda: lstm(SMALL),
    "tiny": lambda: sums(TINY),
    "tiny-product": lambda: lstm(TINY),
}  # fmt: skip

# More requests wait than the default of max_queue lets in, and cuDNN rounds otherwise than the
# processor over 330 steps.
WHOLE = """slo_ms = 60000
max_length = 330
max_batch = {batch}
max_queue = 100000
gpu_tolerance = 0.1
batching = "trust"
[[input]]
name = "token"
length_dim = 1
pad = 0
"""
CELLS = """walk = "repeat"
slo_ms = 60000
max_length = 330
max_batch = {batch}
max_queue = 100000
precision = "{precision}"
[[block]]
name = "cell"
file = "model.onnx"
[block.inputs]
token = "request"
h = "previous.h_next"
"""
CARRY = 'c = "previous.c_next"\n'
OUTPUT = """[[output]]
name = "h"
from = "cell.h_next"
take = "last"
"""


def pack(folder):
    """Builds all files that a bundle carries."""
    for name, build in FILES.items():
        build().save(folder / name)


def place(name, scratch, folder):
    """Puts a file into a model's folder: the bundle's, or one that is built once."""
    source = next((place for place in (PACKED / name, scratch / name) if (place / "model.onnx").is_file()), scratch / name)
    if not source.is_dir():
        FILES[name]().save(source)
    folder.mkdir(parents=True)
    try:
        os.link(source / "model.onnx", folder / "model.onnx")
    except OSError:
        shutil.copy(source / "model.onnx", folder / "model.onnx")


def write(folder, scratch, quick):
    """Writes the LSTM in each precision, one of them for a process of its own, and the cells with almost no work."""
    file, batch = ("lstm-small", 16) if quick else ("lstm", 512)
    models = [(f"lstm-{precision}", file, precision, batch, "") for precision in ("fp32", "tf32", "fp16")]
    models += [("lstm-tf32-process", file, "tf32", batch, 'isolation = "process"\n')]
    models += [(name, name, "tf32", 16, "") for name in ("tiny", "tiny-product")]
    for name, file, precision, rows, first in models:
        place(file, scratch, folder / name / "1")
        carry = "" if name == "tiny" else CARRY
        settings = first + CELLS.format(batch=rows, precision=precision) + carry + OUTPUT
        (folder / name / "model.toml").write_text(settings)


def write_whole(folder, quick):
    """Writes the LSTM over whole sequences. Returns its name."""
    hidden, batch = (SMALL, 16) if quick else (HIDDEN, 512)
    whole_lstm(hidden).save(folder / "lstm-whole" / "1")
    (folder / "lstm-whole" / "model.toml").write_text(WHOLE.format(batch=batch))
    return "lstm-whole"
