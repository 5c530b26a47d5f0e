"""Models to slice, as common exporters write them, with random weights: nothing is downloaded.

Small ones for the tests; `python tests/python/slice_models.py DIR` writes the full-size ones.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


class Draft:
    """A graph in the making; each operator gives the name of its output."""

    def __init__(self, seed=0):
        self.random = np.random.default_rng(seed)
        self.nodes, self.weights, self.count = [], [], 0

    def name(self, kind):
        self.count += 1
        return f"{kind}_{self.count}"

    def const(self, array):
        name = self.name("const")
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape, scale=None):
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        scale = scale or (2.0 / max(fan_in, 1)) ** 0.5
        return self.const((self.random.standard_normal(shape) * scale).astype(np.float32))

    def op(self, kind, *inputs, outputs=1, **attributes):
        names = [self.name(kind.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=f"/{names[0]}", **attributes))
        return names[0] if outputs == 1 else names

    def conv(self, x, into, out, kernel=1, stride=1, group=1, act="Relu"):
        pad = kernel // 2
        w = self.weight(out, into // group, kernel, kernel)
        x = self.op("Conv", x, w, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4, dilations=[1, 1], group=group)
        ones, zeros = np.ones(out, np.float32), np.zeros(out, np.float32)
        scale = self.const(ones + 0.1 * self.random.standard_normal(out).astype(np.float32))
        x = self.op("BatchNormalization", x, scale, self.const(zeros + 0.01), self.const(zeros), self.const(ones))
        return self.op(act, x) if act else x

    def dense(self, x, into, out):
        x = self.op("MatMul", x, self.weight(into, out, scale=into**-0.5))
        return self.op("Add", x, self.weight(out, scale=0.02))

    def model(self, inputs, outputs, opset=17):
        for old, value in outputs:
            self.rename(old, value)
        values = [[helper.make_tensor_value_info(*value) for value in side] for side in (inputs, [o[1] for o in outputs])]
        graph = helper.make_graph(self.nodes, "model", *values, self.weights)
        model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])
        onnx.checker.check_model(model)
        return model

    def rename(self, old, value):
        for node in self.nodes:
            node.output[:] = [value[0] if name == old else name for name in node.output]
            node.input[:] = [value[0] if name == old else name for name in node.input]


def resnet50(width=64, blocks=(3, 4, 6, 3), size=224, classes=1000):
    d = Draft(1)
    x = d.conv("images", 3, width, 7, 2)
    x = d.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    into = width
    for stage, count in enumerate(blocks):
        mid = width << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            y = d.conv(x, into, mid)
            y = d.conv(y, mid, mid, 3, stride)
            y = d.conv(y, mid, 4 * mid, act=None)
            short = d.conv(x, into, 4 * mid, 1, stride, act=None) if not block else x
            x, into = d.op("Relu", d.op("Add", y, short)), 4 * mid
    x = d.op("Flatten", d.op("GlobalAveragePool", x), axis=1)
    y = d.op("Gemm", x, d.weight(classes, into, scale=0.02), d.weight(classes, scale=0.02), transB=1)
    return d.model([("images", FLOAT, ["batch", 3, size, size])], [(y, ("logits", FLOAT, ["batch", classes]))])


# kernel, expanded, out, squeeze-and-excite, activation, stride: MobileNet-V3 large.
MOBILE = [
    (3, 16, 16, 0, "Relu", 1), (3, 64, 24, 0, "Relu", 2), (3, 72, 24, 0, "Relu", 1), (5, 72, 40, 1, "Relu", 2),
    (5, 120, 40, 1, "Relu", 1), (5, 120, 40, 1, "Relu", 1), (3, 240, 80, 0, "HardSwish", 2), (3, 200, 80, 0, "HardSwish", 1),
    (3, 184, 80, 0, "HardSwish", 1), (3, 184, 80, 0, "HardSwish", 1), (3, 480, 112, 1, "HardSwish", 1),
    (3, 672, 112, 1, "HardSwish", 1), (5, 672, 160, 1, "HardSwish", 2), (5, 960, 160, 1, "HardSwish", 1),
    (5, 960, 160, 1, "HardSwish", 1),
]  # fmt: skip


def mobilenet_v3(scale=1.0, rows=MOBILE, size=224, classes=1000):
    d = Draft(2)

    def wide(channels):
        return max(8, int(channels * scale + 4) // 8 * 8)

    x, into = d.conv("images", 3, wide(16), 3, 2, act="HardSwish"), wide(16)
    for kernel, expanded, out, excite, act, stride in rows:
        expanded, out = wide(expanded), wide(out)
        y = d.conv(x, into, expanded, act=act) if expanded != into else x
        y = d.conv(y, expanded, expanded, kernel, stride, group=expanded, act=act)
        if excite:
            few = max(8, expanded // 4)
            s = d.op("GlobalAveragePool", y)
            for a, b, squash in ((expanded, few, "Relu"), (few, expanded, "HardSigmoid")):
                s = d.op("Conv", s, d.weight(b, a, 1, 1), d.weight(b, scale=0.02), kernel_shape=[1, 1], strides=[1, 1], pads=[0] * 4, dilations=[1, 1])
                s = d.op(squash, s)
            y = d.op("Mul", y, s)
        y = d.conv(y, expanded, out, act=None)
        x, into = (d.op("Add", x, y) if stride == 1 and into == out else y), out
    last, features = wide(960), wide(1280)
    x = d.conv(x, into, last, act="HardSwish")
    x = d.op("Flatten", d.op("GlobalAveragePool", x), axis=1)
    x = d.op("HardSwish", d.op("Gemm", x, d.weight(features, last, scale=last**-0.5), d.weight(features, scale=0.02), transB=1))
    y = d.op("Gemm", x, d.weight(classes, features, scale=0.02), d.weight(classes, scale=0.02), transB=1)
    return d.model([("images", FLOAT, ["batch", 3, size, size])], [(y, ("logits", FLOAT, ["batch", classes]))])


def bert(layers=4, hidden=512, heads=8, vocabulary=8000, positions=512):
    """As PyTorch exports it: sizes taken from the ids once, a mask made of them, layer norms in one operator."""
    d = Draft(3)
    ids, mask = "input_ids", "attention_mask"
    length = d.op("Gather", d.op("Shape", ids), d.const(np.int64(1)), axis=0)
    front = d.const(np.array([0]))
    places = d.op("Slice", d.const(np.arange(positions)[None]), front, d.op("Unsqueeze", length, front), d.const(np.array([1])))

    def norm(x):
        scale, bias = d.const(np.ones(hidden, np.float32)), d.const(np.zeros(hidden, np.float32))
        return d.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)

    x = d.op("Gather", d.weight(vocabulary, hidden, scale=0.5), ids)
    x = norm(d.op("Add", x, d.op("Gather", d.weight(positions, hidden, scale=0.5), places)))
    hide = d.op("Unsqueeze", mask, d.const(np.array([1, 2])))
    hide = d.op("Sub", d.const(np.float32(1)), d.op("Cast", hide, to=FLOAT))
    hide = d.op("Mul", hide, d.const(np.float32(-10000)))
    split, join = d.const(np.array([0, 0, heads, hidden // heads])), d.const(np.array([0, 0, hidden]))
    for _ in range(layers):
        parts = [d.op("Reshape", d.dense(x, hidden, hidden), split) for _ in range(3)]
        q, k, v = (d.op("Transpose", part, perm=order) for part, order in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])))
        scores = d.op("Mul", d.op("MatMul", q, k), d.const(np.float32((hidden // heads) ** -0.5)))
        share = d.op("Softmax", d.op("Add", scores, hide), axis=-1)
        mixed = d.op("Reshape", d.op("Transpose", d.op("MatMul", share, v), perm=[0, 2, 1, 3]), join)
        x = norm(d.op("Add", d.dense(mixed, hidden, hidden), x))
        y = d.dense(x, hidden, 4 * hidden)
        gate = d.op("Add", d.op("Erf", d.op("Mul", y, d.const(np.float32(0.5**0.5)))), d.const(np.float32(1)))
        y = d.op("Mul", d.op("Mul", y, gate), d.const(np.float32(0.5)))
        x = norm(d.op("Add", d.dense(y, 4 * hidden, hidden), x))
    inputs = [(name, INT64, ["batch", "sequence"]) for name in (ids, mask)]
    return d.model(inputs, [(x, ("last_hidden_state", FLOAT, ["batch", "sequence", hidden]))])


def unet(width=32, depth=4, size=128):
    d = Draft(4)
    x, into, skips = "images", 3, []
    for level in range(depth):
        out = width << level
        x = d.conv(d.conv(x, into, out, 3), out, out, 3)
        skips.append((x, out))
        x, into = d.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], pads=[0] * 4), out
    x = d.conv(d.conv(x, into, 2 * into, 3), 2 * into, 2 * into, 3)
    into *= 2
    for skip, out in reversed(skips):
        if out % (2 * width):
            scales = d.const(np.array([1, 1, 2, 2], np.float32))
            x = d.op("Resize", x, "", scales, mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric")
        else:
            x = d.op("ConvTranspose", x, d.weight(into, into, 2, 2, scale=into**-0.5), kernel_shape=[2, 2], strides=[2, 2], pads=[0] * 4, dilations=[1, 1])
        x = d.op("Concat", skip, x, axis=1)
        x = d.conv(d.conv(x, into + out, out, 3), out, out, 3)
        into = out
    y = d.op("Conv", x, d.weight(1, into, 1, 1), d.weight(1, scale=0.02), kernel_shape=[1, 1], strides=[1, 1], pads=[0] * 4, dilations=[1, 1])
    y = d.op("Sigmoid", y)
    return d.model([("images", FLOAT, ["batch", 3, size, size])], [(y, ("mask", FLOAT, ["batch", 1, size, size]))])


def recurrent(kind="LSTM", layers=2, hidden=512, features=256, classes=64, vocabulary=0, both=False, every=False, after=0):
    """Embedding or features, stacked layers time first, a dense layer over every element or the last one."""
    d = Draft(5)
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    directions = 2 if both else 1
    x = d.op("Gather", d.weight(vocabulary, features, scale=1.0), "x") if vocabulary else "x"
    x = d.op("Transpose", x, perm=[1, 0, 2])
    into = features
    for _ in range(layers):
        shapes = ((directions, gates * hidden, into), (directions, gates * hidden, hidden), (directions, 2 * gates * hidden))
        weights = [d.weight(*shape, scale=hidden**-0.5) for shape in shapes]
        more = {"linear_before_reset": after} if kind == "GRU" else {}
        direction = "bidirectional" if both else "forward"
        states = d.op(kind, x, *weights, outputs=2, hidden_size=hidden, direction=direction, **more)
        x, last, into = states[0], states[1], directions * hidden
        x = d.op("Reshape", d.op("Transpose", x, perm=[0, 2, 1, 3]), d.const(np.array([0, 0, -1]))) if both else d.op("Squeeze", x, d.const(np.array([1])))
    if every:
        y = d.dense(d.op("Transpose", x, perm=[1, 0, 2]), into, classes)
    else:
        last = d.op("Transpose", last, perm=[1, 0, 2])
        y = d.dense(d.op("Flatten", last, axis=1), into, classes)
    taken = ("x", INT64, ["batch", "length"]) if vocabulary else ("x", FLOAT, ["batch", "length", features])
    shape = ["batch", "length", classes] if every else ["batch", classes]
    return d.model([taken], [(y, ("y", FLOAT, shape))])


FULL = {
    "resnet50": resnet50,
    "mobilenet_v3": mobilenet_v3,
    "bert": bert,
    "unet": unet,
    "lstm": lambda: recurrent(layers=8, every=True),
}

SMALL = {
    "resnet50": lambda: resnet50(width=8, size=32, classes=10),
    "mobilenet_v3": lambda: mobilenet_v3(scale=0.25, size=32, classes=10),
    "bert": lambda: bert(layers=3, hidden=32, heads=4, vocabulary=50, positions=64),
    "unet": lambda: unet(width=4, size=32),
    "lstm": lambda: recurrent(layers=8, hidden=16, features=12, classes=5, every=True),
}


def inputs_of(model, rows, length=7, seed=0):
    """Random inputs: ids below 30, no mask, numbers."""
    random = np.random.default_rng(seed)
    made = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value or length for dim in tensor.shape.dim]
        shape[0] = rows
        if tensor.elem_type == INT64:
            made[value.name] = random.integers(0, 30, shape) if "mask" not in value.name else np.ones(shape, np.int64)
        else:
            made[value.name] = random.standard_normal(shape).astype(np.float32)
    return made


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in FULL.items():
        onnx.save(make(), folder / f"{name}.onnx")
        print(folder / f"{name}.onnx")
