"""Models of random weights that are made on the spot: one shaped like ResNet-50, one like BERT-base, and small ones for a quick run.

Their shapes are all known but the batch, so that a GPU runs every operator: none computes a shape.
"""

import numpy as np
from net import FLOAT, INT64, Net


def resnet(depths, width, size, classes):
    """Bottleneck blocks; depths [3, 4, 6, 3], width 64, size 224 and 1,000 classes are ResNet-50."""
    net = Net("resnet", "modern")
    net.input("images", FLOAT, "batch", 3, size, size)
    x = net.conv("images", 3, width, 7, stride=2)
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = width
    for at, depth in enumerate(depths):
        inner = width << at
        for block in range(depth):
            stride = 2 if at > 0 and block == 0 else 1
            y = net.conv(x, channels, inner, 1, pad=0)
            y = net.conv(y, inner, inner, 3, stride=stride)
            y = net.conv(y, inner, 4 * inner, 1, pad=0, activation=None)
            same = channels == 4 * inner and stride == 1
            short = x if same else net.conv(x, channels, 4 * inner, 1, stride=stride, pad=0, activation=None)
            # Without trained normalisation the sums of sixteen blocks would grow beyond all measure.
            x = net.op("Mul", net.op("Relu", net.op("Add", y, short)), net.const(0.7, np.float32))
            channels = 4 * inner
    net.output(net.linear(net.pooled(x), channels, classes), "logits", FLOAT, "batch", classes)
    return net, {"images": ("image", [3, size, size])}


def bert(layers, width, heads, length, vocabulary):
    """An encoder; 12 layers of width 768 with 12 heads and 30,522 words are BERT-base."""
    net = Net("bert", "modern")
    ids = net.input("input_ids", INT64, "batch", length)
    mask = net.input("attention_mask", INT64, "batch", length)
    x = net.op("Gather", net.weight(vocabulary, width, scale=0.5), ids, axis=0)
    x = net.layer_norm(net.op("Add", x, net.weight(1, length, width, scale=0.1)), width)
    shown = net.op("Reshape", net.op("Cast", mask, to=FLOAT), net.const([0, 1, 1, length]))
    bias = net.op("Mul", net.op("Sub", net.const(1.0, np.float32), shown), net.const(-1e4, np.float32))
    for _ in range(layers):
        x = net.layer_norm(net.op("Add", x, net.attention(x, width, heads, bias)), width)
        inner = net.linear(net.gelu(net.linear(x, width, 4 * width)), 4 * width, width)
        x = net.layer_norm(net.op("Add", x, inner), width)
    first = net.op("Gather", x, net.const(0), axis=1)
    net.output(net.linear(first, width, 2), "logits", FLOAT, "batch", 2)
    return net, {"input_ids": (vocabulary, [length]), "attention_mask": ("mask", [length])}


def models(quick):
    """Each model by name, with the inputs of a request."""
    if quick:
        return {"resnet-small": resnet([1, 1], 8, 32, 10), "bert-small": bert(1, 32, 2, 16, 100)}
    return {"resnet50": resnet([3, 4, 6, 3], 64, 224, 1000), "bert-base": bert(12, 768, 12, 128, 30522)}


def feed(inputs, rows, seed=1):
    """The tensors of a request of several rows."""
    random = np.random.default_rng(seed)
    made = {}
    for name, (kind, shape) in inputs.items():
        if kind == "mask":
            made[name] = np.ones([rows, *shape], np.int64)
        elif isinstance(kind, int):
            made[name] = random.integers(0, kind, [rows, *shape])
        else:
            made[name] = random.standard_normal([rows, *shape]).astype(np.float32)
    return made
