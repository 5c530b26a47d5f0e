"""Models with random weights for `ripieno reproduce lazybatching/... --measured --models FOLDER`: nothing is downloaded.

    python tests/python/measured_models.py FOLDER

writes resnet50 (images of 32 x 32, so that a request takes some milliseconds on one thread), bert (an encoder over 64 tokens) and
transformer (one layer each that encodes and decodes a sentence token by token over a cache of keys and values of fixed size, so that
it is a model in cells); resnet50-blocks and bert-blocks are the same files, to be cut into stages at load.
"""

import argparse
import pathlib

import numpy as np
import onnx

import slice_models
from slice_models import FLOAT, INT64, Draft

TOML = 'slo_ms = {slo}\nmax_batch = {batch}\nlate = "answer"\n'
LENGTH = 64
HIDDEN, VOCABULARY, PLACES = 512, 8000, 64


def attend(d, x, place):
    """Attention over what has been seen: keys and values are carried in tensors of all places; returns the new ones, too."""
    here = d.op("Equal", d.op("Unsqueeze", place, d.const(np.array([1]))), d.const(np.arange(PLACES)))
    here = d.op("Unsqueeze", d.op("Cast", here, to=FLOAT), d.const(np.array([2])))
    kept = []
    for name in ("keys", "values"):
        new = d.op("Unsqueeze", d.dense(x, HIDDEN, HIDDEN), d.const(np.array([1])))
        kept.append(d.op("Add", name, d.op("Mul", here, d.op("Sub", new, name))))
    query = d.op("Unsqueeze", d.dense(x, HIDDEN, HIDDEN), d.const(np.array([2])))
    scores = d.op("Squeeze", d.op("MatMul", kept[0], query), d.const(np.array([2])))
    ahead = d.op("Greater", d.const(np.arange(PLACES)[None]), d.op("Unsqueeze", place, d.const(np.array([1]))))
    scores = d.op("Sub", scores, d.op("Mul", d.op("Cast", ahead, to=FLOAT), d.const(np.float32(1e9))))
    share = d.op("Unsqueeze", d.op("Softmax", scores, axis=-1), d.const(np.array([1])))
    mixed = d.op("Squeeze", d.op("MatMul", share, kept[1]), d.const(np.array([1])))
    return d.op("Add", x, d.dense(mixed, HIDDEN, HIDDEN)), kept


def feed_forward(d, x):
    inner = d.op("Relu", d.dense(x, HIDDEN, 4 * HIDDEN))
    return d.op("Add", x, d.dense(inner, 4 * HIDDEN, HIDDEN))


def place_after(d, place):
    return d.op("Add", place, d.const(np.array([1])))


STATE = [("keys", FLOAT, ["batch", PLACES, HIDDEN]), ("values", FLOAT, ["batch", PLACES, HIDDEN]), ("place", INT64, ["batch"])]


def named(outputs):
    """What a cell gives, under the names of its state."""
    return [(value, (f"{name}_next", kind, shape)) for value, (name, kind, shape) in zip(outputs, STATE)]


def encoder():
    d = Draft(11)
    x = d.op("Gather", d.weight(VOCABULARY, HIDDEN, scale=0.5), "token")
    x, kept = attend(d, x, "place")
    x = feed_forward(d, x)
    outputs = [*named([*kept, place_after(d, "place")]), (d.op("Identity", x), ("h_next", FLOAT, ["batch", HIDDEN]))]
    return d.model([("token", INT64, ["batch"]), *STATE], outputs)


def decoder():
    """Ends after as many tokens as the encoder has read, `left` counts them down."""
    d = Draft(12)
    x = d.op("Add", d.op("Gather", d.weight(VOCABULARY, HIDDEN, scale=0.5), "token"), "h")
    x, kept = attend(d, x, "place")
    x = feed_forward(d, x)
    token = d.op("ArgMax", d.dense(x, HIDDEN, VOCABULARY), axis=1, keepdims=0)
    left = d.op("Sub", "left", d.const(np.array([1])))
    done = d.op("LessOrEqual", left, d.const(np.array([0])))
    outputs = [
        *named([*kept, place_after(d, "place")]),
        (d.op("Identity", "h"), ("h_next", FLOAT, ["batch", HIDDEN])),
        (token, ("token_next", INT64, ["batch"])),
        (left, ("left_next", INT64, ["batch"])),
        (done, ("done", onnx.TensorProto.BOOL, ["batch"])),
    ]
    inputs = [("token", INT64, ["batch"]), ("h", FLOAT, ["batch", HIDDEN]), *STATE, ("left", INT64, ["batch"])]
    return d.model(inputs, outputs)


TRANSFORMER = """walk = "encode-decode"
max_length = 60
max_steps = 60

[[block]]
name = "encoder"
[block.inputs]
token = "request"
keys = "previous.keys_next"
values = "previous.values_next"
place = "previous.place_next"

[[block]]
name = "decoder"
end = "done"
[block.inputs]
token = "previous.token_next"
h = "previous.h_next"
keys = "previous.keys_next"
values = "previous.values_next"
place = "previous.place_next"
left = "previous.left_next"
[block.initial]
token = 1
h = "encoder.h_next"
left = "encoder.place_next"

[[output]]
name = "tokens"
from = "decoder.token_next"
take = "every"
"""


def save(folder, toml, **files):
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "model.toml").write_text(toml)
    for name, model in files.items():
        onnx.save(model, folder / "1" / f"{name}.onnx")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--slo", type=float, default=100.0, help="latency target in milliseconds")
    parser.add_argument("--batch", type=int, default=16, help="largest batch")
    parser.add_argument("--stages", type=int, default=4, help="into how many")
    args = parser.parse_args()
    toml = TOML.format(slo=args.slo, batch=args.batch)
    bert = slice_models.bert(layers=4, hidden=256, heads=4)
    for value in [*bert.graph.input, *bert.graph.output]:
        value.type.tensor_type.shape.dim[1].dim_value = LENGTH
    wholes = {"resnet50": slice_models.resnet50(size=32), "bert": bert}
    for name, model in wholes.items():
        save(args.folder / name, toml, model=model)
        save(args.folder / f"{name}-blocks", f'{toml}granularity = "stages"\nstages = {args.stages}\n', model=model)
    save(args.folder / "transformer", toml + TRANSFORMER, encoder=encoder(), decoder=decoder())


if __name__ == "__main__":
    main()
