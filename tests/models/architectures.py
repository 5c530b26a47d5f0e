"""Architectures at random weights, each with the inputs of a real request of one row.

Every function returns a `Net` and the inputs of a request: name to (kind, shape), where kind is "float", "image", "ids" below
some number, "mask", or "bytes". Nothing is written beside the files: they are served as they come.
"""

import numpy as np
from net import FLOAT, INT64, UINT8, Net

ALL = {}


def architecture(function):
    ALL[function.__name__] = function
    return function


def image(net, *size, name="images", batch="batch", channels=3):
    return net.input(name, FLOAT, batch, channels, *(size or ("height", "width")))


def logits(net, x, width, classes=10, batch="batch"):
    net.output(net.linear(x, width, classes), "logits", FLOAT, batch, classes)
    return net


@architecture
def lenet():
    net = Net("lenet")
    x = image(net, 28, 28, channels=1)
    x = net.op("MaxPool", net.conv(x, 1, 6, 5, activation="Tanh"), kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("MaxPool", net.conv(x, 6, 16, 5, pad=0, activation="Tanh"), kernel_shape=[2, 2], strides=[2, 2])
    return logits(net, net.flat(x, 400), 400), {"images": ("image", [1, 28, 28])}


@architecture
def alexnet():
    net = Net("alexnet")
    x = net.conv(image(net, 96, 96), 3, 32, 7, stride=4)
    x = net.op("LRN", net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2]), size=5)
    x = net.op("MaxPool", net.conv(x, 32, 64), kernel_shape=[3, 3], strides=[2, 2])
    x = net.op("Relu", net.linear(net.op("Flatten", x), 64 * 5 * 5, 256))
    return logits(net, x, 256), {"images": ("image", [3, 96, 96])}


def residual(dialect, open_size):
    net = Net("resnet", dialect)
    x = net.conv(image(net, *(() if open_size else (64, 64))), 3, 16, 7, stride=2)
    for channels, to in [(16, 16), (16, 32), (32, 64)]:
        stride = 1 if channels == to else 2
        y = net.op("Relu", net.batch_norm(net.conv(x, channels, to, stride=stride, activation=None), to))
        y = net.batch_norm(net.conv(y, to, to, activation=None), to)
        short = x if channels == to else net.conv(x, channels, to, 1, stride=stride, pad=0, activation=None)
        x = net.op("Relu", net.op("Add", y, short))
    return logits(net, net.pooled(x), 64)


@architecture
def resnet():
    return residual("classic", False), {"images": ("image", [3, 64, 64])}


@architecture
def resnet_modern():
    return residual("modern", True), {"images": ("image", [3, 224, 224])}


@architecture
def vgg():
    net = Net("vgg", "modern")
    x = image(net, 64, 64)
    for channels, to in [(3, 16), (16, 32), (32, 64)]:
        x = net.op("MaxPool", net.conv(net.conv(x, channels, to), to, to), kernel_shape=[2, 2], strides=[2, 2])
    return logits(net, net.op("Relu", net.linear(net.op("Flatten", x), 4096, 128)), 128), {"images": ("image", [3, 64, 64])}


@architecture
def mobilenet():
    net = Net("mobilenet")
    six = lambda x: net.op("Clip", x, net.const(0.0, np.float32), net.const(6.0, np.float32))
    x = six(net.conv(image(net), 3, 16, stride=2, activation=None))
    for channels, to, stride in [(16, 24, 2), (24, 24, 1), (24, 32, 2)]:
        y = six(net.conv(x, channels, 4 * channels, 1, activation=None))
        y = six(net.conv(y, 4 * channels, 4 * channels, stride=stride, groups=4 * channels, activation=None))
        y = net.conv(y, 4 * channels, to, 1, activation=None)
        x = net.op("Add", x, y) if channels == to and stride == 1 else y
    return logits(net, net.pooled(x), 32), {"images": ("image", [3, 224, 224])}


@architecture
def shufflenet():
    net = Net("shufflenet")
    x = net.conv(image(net, 64, 64), 3, 24, stride=2)
    for _ in range(2):
        left, right = net.op("Split", x, net.const([12, 12]), outputs=2, axis=1)
        right = net.conv(net.conv(right, 12, 12, 1), 12, 12, groups=12)
        x = net.op("Concat", left, right, axis=1)
        x = net.op("Reshape", x, net.sizes(x, 0, [2], [12], 2, 3))
        x = net.op("Transpose", x, perm=[0, 2, 1, 3, 4])
        x = net.op("Reshape", x, net.sizes(x, 0, [24], 3, 4))
    return logits(net, net.pooled(x), 24), {"images": ("image", [3, 64, 64])}


@architecture
def squeezenet():
    net = Net("squeezenet")
    x = net.op("MaxPool", net.conv(image(net), 3, 32, stride=2), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    for _ in range(2):
        narrow = net.conv(x, 32, 8, 1)
        x = net.op("Concat", net.conv(narrow, 8, 16, 1), net.conv(narrow, 8, 16), axis=1)
    net.output(net.pooled(net.conv(x, 32, 10, 1)), "logits", FLOAT, "batch", 10)
    return net, {"images": ("image", [3, 224, 224])}


@architecture
def densenet():
    net = Net("densenet", "modern")
    x = net.conv(image(net, 64, 64), 3, 16, stride=2)
    for at in range(4):
        new = net.conv(net.op("Relu", net.batch_norm(x, 16 + 8 * at)), 16 + 8 * at, 8, activation=None)
        x = net.op("Concat", x, new, axis=1)
    return logits(net, net.pooled(net.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])), 48), {
        "images": ("image", [3, 64, 64])
    }


@architecture
def efficientnet():
    net = Net("efficientnet")
    swish = lambda x: net.op("Mul", x, net.op("Sigmoid", x))
    x = swish(net.conv(image(net), 3, 16, stride=2, activation=None))
    for _ in range(2):
        y = swish(net.conv(x, 16, 64, 1, activation=None))
        y = swish(net.conv(y, 64, 64, groups=64, activation=None))
        gate = net.conv(net.conv(net.op("GlobalAveragePool", y), 64, 8, 1), 8, 64, 1, activation="Sigmoid")
        x = net.op("Add", x, net.conv(net.op("Mul", y, gate), 64, 16, 1, activation=None))
    return logits(net, net.pooled(x), 16), {"images": ("image", [3, 224, 224])}


@architecture
def convnext():
    net = Net("convnext", "modern")
    x = net.conv(image(net, 64, 64), 3, 32, 4, stride=4, pad=0, activation=None)
    for _ in range(2):
        y = net.op("Transpose", net.conv(x, 32, 32, 7, groups=32, activation=None), perm=[0, 2, 3, 1])
        y = net.linear(net.gelu(net.linear(net.layer_norm(y, 32), 32, 128)), 128, 32)
        x = net.op("Add", x, net.op("Transpose", y, perm=[0, 3, 1, 2]))
    return logits(net, net.pooled(x), 32), {"images": ("image", [3, 64, 64])}


def vision_transformer(dialect):
    net = Net("vit", dialect)
    x = net.conv(image(net, 64, 64), 3, 64, 16, stride=16, pad=0, activation=None)
    x = net.op("Transpose", net.op("Reshape", x, net.sizes(x, 0, [64], [16])), perm=[0, 2, 1])
    x = net.op("Add", x, net.weight(1, 16, 64, scale=0.02))
    for _ in range(2):
        x = net.block(x, 64, 4)
    mean = net.op("ReduceMean", x, net.const([1]), keepdims=0) if net.modern else net.op("ReduceMean", x, axes=[1], keepdims=0)
    return logits(net, mean, 64), {"images": ("image", [3, 64, 64])}


@architecture
def vit():
    return vision_transformer("classic")


@architecture
def vit_modern():
    return vision_transformer("modern")


@architecture
def unet():
    """Height and width are multiples of four: other sizes do not fit together."""
    net = Net("unet")
    first = net.conv(image(net, channels=1), 1, 8)
    second = net.conv(net.op("MaxPool", first, kernel_shape=[2, 2], strides=[2, 2]), 8, 16)
    third = net.conv(net.op("MaxPool", second, kernel_shape=[2, 2], strides=[2, 2]), 16, 32)
    up = net.op("ConvTranspose", third, net.weight(32, 16, 2, 2), kernel_shape=[2, 2], strides=[2, 2])
    x = net.conv(net.op("Concat", second, up, axis=1), 32, 16)
    up = net.op("ConvTranspose", x, net.weight(16, 8, 2, 2), kernel_shape=[2, 2], strides=[2, 2])
    x = net.conv(net.op("Concat", first, up, axis=1), 16, 1, 1, activation="Sigmoid")
    net.output(x, "mask", FLOAT, "batch", 1, "height", "width")
    return net, {"images": ("image", [1, 224, 224])}


@architecture
def detector():
    """Three scales that are joined again by Resize; sizes are multiples of 16."""
    net = Net("detector")
    x = image(net)
    scales = []
    for channels, to in [(3, 8), (8, 16), (16, 24), (24, 32)]:
        x = net.conv(x, channels, to, stride=2)
        scales.append((x, to))
    up, width = scales[-1]
    found = []
    for side, channels in [scales[-1], scales[-2], scales[-3]]:
        if side != up:
            up = net.op("Resize", up, "", net.const([1, 1, 2, 2], np.float32), mode="nearest")
            up, width = net.op("Concat", up, side, axis=1), width + channels
        boxes = net.conv(up, width, 6, 1, activation=None)
        boxes = net.op("Reshape", boxes, net.sizes(boxes, 0, [6], [-1]))
        found.append(net.op("Transpose", boxes, perm=[0, 2, 1]))
    net.output(net.op("Concat", *found, axis=1), "boxes", FLOAT, "batch", "anchors", 6)
    return net, {"images": ("image", [3, 224, 224])}


@architecture
def super_resolution():
    net = Net("superresolution")
    x = net.conv(net.conv(image(net, channels=1), 1, 16, 5), 16, 4, activation=None)
    net.output(net.op("DepthToSpace", x, blocksize=2, mode="CRD"), "large", FLOAT, "batch", 1, "h2", "w2")
    return net, {"images": ("image", [1, 224, 224])}


@architecture
def style():
    net = Net("style")
    x = net.op("Pad", image(net), net.const([0, 0, 2, 2, 0, 0, 2, 2]), mode="reflect")
    x = net.conv(x, 3, 16, 5, pad=0, activation=None)
    x = net.op("InstanceNormalization", x, net.const(np.ones(16), np.float32), net.weight(16, scale=0.1))
    x = net.conv(net.op("LeakyRelu", x, alpha=0.2), 16, 3, activation="Tanh")
    net.output(x, "styled", FLOAT, "batch", 3, "height", "width")
    return net, {"images": ("image", [3, 224, 224])}


@architecture
def generator():
    net = Net("generator")
    x = net.linear(net.input("noise", FLOAT, "batch", 32), 32, 32 * 16)
    x = net.op("Reshape", x, net.sizes(x, 0, [32], [4], [4]))
    for channels, to in [(32, 16), (16, 3)]:
        x = net.op("ConvTranspose", x, net.weight(channels, to, 4, 4), kernel_shape=[4, 4], strides=[2, 2], pads=[1] * 4)
    net.output(net.op("Tanh", x), "images", FLOAT, "batch", 3, 16, 16)
    return net, {"noise": ("float", [32])}


def encoder(dialect, types=True, words=500, width=64):
    net = Net("bert", dialect)
    ids = net.input("input_ids", INT64, "batch", "sequence")
    mask = net.input("attention_mask", INT64, "batch", "sequence")
    x = net.op("Gather", net.weight(words, width, scale=0.5), ids, axis=0)
    if types:
        kinds = net.input("token_type_ids", INT64, "batch", "sequence")
        x = net.op("Add", x, net.op("Gather", net.weight(2, width, scale=0.5), kinds, axis=0))
    # Positions are cut from a table as far as the sequence goes.
    length = net.op("Gather", net.op("Shape", ids), net.const([1]), axis=0)
    places = net.op("Slice", net.const(np.arange(128)[None]), net.const([0]), length, net.const([1]))
    x = net.layer_norm(net.op("Add", x, net.op("Gather", net.weight(128, width, scale=0.5), places, axis=0)), width)
    wide = net.op("Unsqueeze", net.op("Unsqueeze", mask, net.const([1])), net.const([2]))
    hidden = net.op("Sub", net.const(1.0, np.float32), net.op("Cast", wide, to=FLOAT))
    bias = net.op("Mul", hidden, net.const(-1e4, np.float32))
    for _ in range(2):
        x = net.block(x, width, 4, bias)
    return net, x, {"input_ids": (words, [24]), "attention_mask": ("mask", [24])} | (
        {"token_type_ids": (2, [24])} if types else {}
    )


@architecture
def bert():
    net, x, inputs = encoder("classic")
    net.output(x, "last_hidden_state", FLOAT, "batch", "sequence", 64)
    return net, inputs


@architecture
def bert_modern():
    net, x, inputs = encoder("modern")
    net.output(x, "last_hidden_state", FLOAT, "batch", "sequence", 64)
    return net, inputs


@architecture
def distilbert_classifier():
    net, x, inputs = encoder("classic", types=False)
    first = net.op("Gather", x, net.const(0), axis=1)
    return logits(net, first, 64, 2), inputs


@architecture
def language_model():
    net = Net("gpt")
    ids = net.input("input_ids", INT64, "batch", "sequence")
    x = net.op("Gather", net.weight(500, 64, scale=0.5), ids, axis=0)
    length = net.op("Gather", net.op("Shape", ids), net.const([1]), axis=0)
    square = net.op("Concat", length, length, axis=0)
    ones = net.op("Expand", net.const(1.0, np.float32), square)
    future = net.op("Sub", ones, net.op("Trilu", ones, upper=0))
    bias = net.op("Mul", future, net.const(-1e4, np.float32))
    for _ in range(2):
        x = net.block(x, 64, 4, bias)
    net.output(net.linear(x, 64, 500, bias=False), "logits", FLOAT, "batch", "sequence", 500)
    return net, {"input_ids": (500, [24])}


@architecture
def text_cnn():
    net = Net("textcnn")
    x = net.op("Gather", net.weight(500, 32, scale=0.5), net.input("tokens", INT64, "batch", "length"), axis=0)
    x = net.op("Transpose", x, perm=[0, 2, 1])
    parts = [net.op("GlobalMaxPool", net.conv(x, 32, 16, size, dims=1)) for size in (3, 5)]
    return logits(net, net.op("Flatten", net.op("Concat", *parts, axis=1)), 32, 4), {"tokens": (500, [40])}


def recurrent(net, kind, x, width, to, gates, both=True):
    """x [N, T, width] to [N, T, 2 to]."""
    ways = 2 if both else 1
    x = net.op("Transpose", x, perm=[1, 0, 2])
    weights = [net.weight(ways, gates * to, width), net.weight(ways, gates * to, to), net.weight(ways, 2 * gates * to)]
    y = net.op(kind, x, *weights, hidden_size=to, direction="bidirectional" if both else "forward")
    y = net.op("Transpose", y, perm=[2, 0, 1, 3])
    return net.op("Reshape", y, net.sizes(y, 0, 1, [ways * to]))


@architecture
def lstm_classifier():
    net = Net("lstm")
    x = net.op("Gather", net.weight(500, 32, scale=0.5), net.input("tokens", INT64, "batch", "length"), axis=0)
    x = recurrent(net, "LSTM", x, 32, 32, 4)
    return logits(net, net.op("ReduceMax", x, axes=[1], keepdims=0), 64, 5), {"tokens": (500, [30])}


@architecture
def gru_tagger():
    net = Net("gru")
    x = recurrent(net, "GRU", net.input("frames", FLOAT, "batch", "time", 20), 20, 24, 3)
    net.output(net.op("Softmax", net.linear(x, 48, 7), axis=-1), "tags", FLOAT, "batch", "time", 7)
    return net, {"frames": ("float", [50, 20])}


@architecture
def text_reader():
    """Convolutions, then an LSTM along the width of an image."""
    net = Net("crnn")
    x = net.conv(net.input("images", FLOAT, "batch", 3, 32, "width"), 3, 16, stride=2)
    x = net.op("MaxPool", net.conv(x, 16, 32), kernel_shape=[16, 1], strides=[16, 1])
    x = net.op("Transpose", net.op("Squeeze", x, net.const([2])), perm=[0, 2, 1])
    net.output(net.linear(recurrent(net, "LSTM", x, 32, 24, 4), 48, 40), "letters", FLOAT, "batch", "steps", 40)
    return net, {"images": ("image", [3, 32, 160])}


@architecture
def keyword_spotter():
    net = Net("keywords", "modern")
    x = net.conv(net.input("mel", FLOAT, "batch", 40, "frames"), 40, 32, 9, stride=2, dims=1)
    x = net.conv(x, 32, 32, 9, groups=32, dims=1)
    return logits(net, net.pooled(x), 32, 12), {"mel": ("float", [40, 98])}


@architecture
def waveform():
    """Strided convolutions over a raw signal: shorter ones than 400 samples leave nothing."""
    net = Net("waveform")
    x = net.conv(net.input("signal", FLOAT, "batch", 1, "samples"), 1, 16, 80, stride=16, pad=0, dims=1)
    x = net.conv(net.conv(x, 16, 16, 8, stride=4, pad=0, dims=1), 16, 32, 4, stride=2, pad=0, dims=1)
    return logits(net, net.pooled(x), 32, 12), {"signal": ("float", [1, 16000])}


@architecture
def mlp():
    net = Net("mlp")
    x = net.op("Relu", net.linear(net.input("x", FLOAT, "batch", 16), 16, 64))
    return logits(net, x, 64, 3), {"x": ("float", [16])}


@architecture
def wide_and_deep():
    net = Net("wide")
    deep = net.op("Gather", net.weight(100, 16), net.input("categories", INT64, "batch", 4), axis=0)
    wide = net.input("numbers", FLOAT, "batch", 8)
    x = net.op("Concat", net.flat(deep, 64), wide, axis=1)
    score = net.op("Sigmoid", net.linear(net.op("Relu", net.linear(x, 72, 32)), 32, 1))
    net.output(score, "score", FLOAT, "batch", 1)
    return net, {"categories": (100, [4]), "numbers": ("float", [8])}


@architecture
def recommender():
    net = Net("recommender")
    user = net.op("Gather", net.weight(200, 16), net.input("user", INT64, "batch"), axis=0)
    items = net.op("Gather", net.weight(300, 16), net.input("items", INT64, "batch", "count"), axis=0)
    scores = net.op("MatMul", items, net.op("Unsqueeze", user, net.const([2])))
    net.output(net.op("Squeeze", scores, net.const([2])), "scores", FLOAT, "batch", "count")
    return net, {"user": (200, []), "items": (300, [20])}


@architecture
def scaled_classifier():
    """What converters of scikit-learn write: operators of ai.onnx.ml, a label beside the scores."""
    net = Net("classifier")
    x = net.input("x", FLOAT, "batch", 5)
    ml = {"domain": "ai.onnx.ml"}
    x = net.op("Scaler", x, offset=[0.1] * 5, scale=[2.0] * 5, **ml)
    numbers = net.random.standard_normal(20).tolist()
    label, scores = net.op(
        "LinearClassifier", x, outputs=2, coefficients=numbers[:15], intercepts=numbers[15:18], classlabels_ints=[0, 1, 2],
        post_transform="SOFTMAX", multi_class=1, **ml,
    )  # fmt: skip
    net.output(label, "label", INT64, "batch")
    net.output(scores, "scores", FLOAT, "batch", 3)
    return net, {"x": ("float", [5])}


@architecture
def quantised():
    net = Net("quantised")
    zero, scale = net.const(128, np.uint8), net.const(0.05, np.float32)
    x = net.op("DequantizeLinear", net.op("QuantizeLinear", net.input("x", FLOAT, "batch", 16), scale, zero), scale, zero)
    weight = net.const(net.random.integers(-127, 127, (16, 32)), np.int8)
    weight = net.op("DequantizeLinear", weight, net.const(0.01, np.float32), net.const(0, np.int8))
    return logits(net, net.op("Relu", net.op("MatMul", x, weight)), 32), {"x": ("float", [16])}


@architecture
def bytes_to_classes():
    """Takes the bytes of an image, height and width open, as clients that do not prepare anything send them."""
    net = Net("bytes")
    x = net.input("pixels", UINT8, "batch", "height", "width", 3)
    x = net.op("Transpose", net.op("Div", net.op("Cast", x, to=FLOAT), net.const(255.0, np.float32)), perm=[0, 3, 1, 2])
    return logits(net, net.pooled(net.conv(x, 3, 16, stride=2)), 16), {"pixels": ("bytes", [224, 224, 3])}


@architecture
def batch_of_one():
    net = Net("one")
    x = net.conv(net.input("images", FLOAT, 1, 3, 32, 32), 3, 8)
    return logits(net, net.pooled(x), 8, batch=1), {"images": ("image", [3, 32, 32])}


@architecture
def siamese():
    net = Net("siamese")
    weight = net.weight(8, 3, 3, 3)
    sides = []
    for name in ("left", "right"):
        x = net.op("Conv", image(net, 48, 48, name=name), weight, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
        sides.append(net.pooled(net.op("Relu", x)))
    gap = net.op("ReduceSum", net.op("Abs", net.op("Sub", *sides)), net.const([1]), keepdims=1)
    net.output(gap, "distance", FLOAT, "batch", 1)
    return net, {"left": ("image", [3, 48, 48]), "right": ("image", [3, 48, 48])}


def request(inputs, seed, kinds):
    """The tensors of a request of one row."""
    random = np.random.default_rng(seed)
    made = {}
    for name, (kind, shape) in inputs.items():
        shape = [1, *shape]
        if isinstance(kind, int):
            made[name] = random.integers(0, kind, shape)
        elif kind == "mask":
            made[name] = np.ones(shape, np.int64)
        elif kind == "bytes":
            made[name] = random.integers(0, 256, shape).astype(np.uint8)
        else:
            made[name] = random.standard_normal(shape).astype(np.float32)
    assert set(made) == set(kinds), (sorted(made), sorted(kinds))
    return made

