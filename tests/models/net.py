"""A small builder of ONNX graphs with random weights, in the two dialects that PyTorch's exporters write.

`classic` is that of the exporter by tracing: shapes are computed in the graph (Shape, Gather, Concat, Reshape), layer
normalisation and GELU are spelt out. `modern` is that of the exporter by `torch.export`: opset 20, one operator each, INT64
constants among the weights, large weights in an external file.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, UINT8 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8


class Net:
    def __init__(self, name, dialect="classic", seed=1):
        self.name, self.modern = name, dialect == "modern"
        self.random = np.random.default_rng(seed)
        self.nodes, self.weights, self.inputs, self.outputs, self.domains = [], [], [], [], set()

    # What a graph consists of.

    def input(self, name, kind, *shape):
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, value, name, kind, *shape):
        self.nodes.append(helper.make_node("Identity", [value], [name]))
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def op(self, kind, *inputs, outputs=1, domain="", **attributes):
        names = [f"v{len(self.nodes)}_{at}" for at in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        self.domains.add(domain)
        return names[0] if outputs == 1 else names

    def const(self, values, dtype=np.int64):
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def weight(self, *shape, scale=None):
        scale = scale if scale is not None else 1 / np.sqrt(max(1, np.prod(shape[1:]) if len(shape) > 1 else shape[0]))
        return self.const(self.random.standard_normal(shape) * scale, np.float32)

    def save(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.weights)
        opsets = [helper.make_opsetid("", 20 if self.modern else 17)]
        opsets += [helper.make_opsetid(domain, 3) for domain in sorted(self.domains) if domain]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name="pytorch")
        onnx.checker.check_model(model)
        data = {"save_as_external_data": True, "location": "model.onnx.data", "size_threshold": 128} if self.modern else {}
        onnx.save(model, str(folder / "model.onnx"), **data)

    # Layers.

    def linear(self, x, width, to, bias=True):
        y = self.op("MatMul", x, self.weight(width, to, scale=1 / np.sqrt(width)))
        return self.op("Add", y, self.weight(to, scale=0.1)) if bias else y

    def conv(self, x, channels, to, size=3, stride=1, groups=1, pad=None, dims=2, activation="Relu", **options):
        pad = size // 2 if pad is None else pad
        attributes = {"kernel_shape": [size] * dims, "strides": [stride] * dims, "pads": [pad] * 2 * dims, "group": groups}
        attributes.update(options)
        weight = self.weight(to, channels // groups, *[size] * dims)
        y = self.op("Conv", x, weight, self.weight(to, scale=0.1), **attributes)
        return self.op(activation, y) if activation else y

    def batch_norm(self, x, channels):
        ones = self.const(np.ones(channels) + 0.1 * self.random.random(channels), np.float32)
        return self.op("BatchNormalization", x, ones, self.weight(channels, scale=0.1), self.weight(channels, scale=0.1), ones)

    def layer_norm(self, x, width):
        scale, bias = self.const(np.ones(width), np.float32), self.weight(width, scale=0.1)
        if self.modern:
            return self.op("LayerNormalization", x, scale, bias, axis=-1)
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        squares = self.op("Pow", centred, self.const(2.0, np.float32))
        spread = self.op("Add", self.op("ReduceMean", squares, axes=[-1]), self.const(1e-5, np.float32))
        normal = self.op("Div", centred, self.op("Sqrt", spread))
        return self.op("Add", self.op("Mul", normal, scale), bias)

    def gelu(self, x):
        if self.modern:
            return self.op("Gelu", x)
        half = self.op("Mul", x, self.const(0.5, np.float32))
        error = self.op("Erf", self.op("Div", x, self.const(1.4142135, np.float32)))
        return self.op("Mul", half, self.op("Add", error, self.const(1.0, np.float32)))

    def sizes(self, x, *parts):
        """A shape: an index is that dimension of x, [n] a number."""
        if self.modern:
            return self.const([0 if part == at else part[0] for at, part in enumerate(parts)])
        shape = self.op("Shape", x)
        axis = self.const([0])

        def part(of):
            if isinstance(of, list):
                return self.const(of)
            return self.op("Unsqueeze", self.op("Gather", shape, self.const(of), axis=0), axis)

        return self.op("Concat", *map(part, parts), axis=0)

    def attention(self, x, width, heads, bias=None):
        """Self-attention over x [N, T, width]; `bias` is added to the scores."""
        split = self.sizes(x, 0, [-1] if self.modern else 1, [heads], [width // heads])
        turned = lambda y, order: self.op("Transpose", self.op("Reshape", y, split), perm=order)
        query = turned(self.linear(x, width, width), [0, 2, 1, 3])
        key = turned(self.linear(x, width, width), [0, 2, 3, 1])
        value = turned(self.linear(x, width, width), [0, 2, 1, 3])
        scores = self.op("Div", self.op("MatMul", query, key), self.const(np.sqrt(width / heads), np.float32))
        scores = self.op("Add", scores, bias) if bias else scores
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), value)
        mixed = self.op("Transpose", mixed, perm=[0, 2, 1, 3])
        joined = self.op("Reshape", mixed, self.sizes(mixed, 0, [-1] if self.modern else 1, [width]))
        return self.linear(joined, width, width)

    def block(self, x, width, heads, bias=None):
        """A transformer's block."""
        x = self.layer_norm(self.op("Add", x, self.attention(x, width, heads, bias)), width)
        inner = self.linear(self.gelu(self.linear(x, width, 2 * width)), 2 * width, width)
        return self.layer_norm(self.op("Add", x, inner), width)

    def flat(self, x, width):
        return self.op("Reshape", x, self.sizes(x, 0, [width]))

    def pooled(self, x):
        return self.op("Flatten", self.op("GlobalAveragePool", x))
