"""Models to measure DVABatch with, random weights: `python tests/python/dva_models.py DIR` writes a repository.

bert and bert-wide, small BERTs whose requests have lengths (up to 256 and 64), and bert-2, in two stages; unet and resnet, whole, and each in four stages;
and `DIR-emulated`, for --device emulated: unet-declared, four stages of which the first two saturate the device at 32 rows
and the others at 8, and resnet-declared, four stages that all do at 8. What `ripieno compare` does with them stands in docs/research/performance.md.
"""

import sys
from pathlib import Path

import onnx

import slice_models

LONGEST = 256
# Nothing is refused: a late answer counts with its latency.
COMMON = 'slo_ms = 60000\nlate = "answer"\nmax_queue = 20000\n'
LENGTHS = """

[[input]]
name = "input_ids"
length_dim = 1
pad = 0

[[input]]
name = "attention_mask"
length_dim = 1
pad = 0

[[output]]
name = "last_hidden_state"
length_dim = 1
"""


def lengths(longest):
    return f"max_length = {longest}\n{LENGTHS}"


def stages(count):
    return f'granularity = "stages"\nstages = {count}\n'


def models():
    """(name, model, model.toml)"""
    bert = slice_models.bert(layers=2, hidden=128, heads=4, vocabulary=2000, positions=LONGEST)
    unet = slice_models.unet(width=8, depth=3, size=64)
    resnet = slice_models.resnet50(width=16, size=64, classes=100)
    batch = "max_batch = 32\n"
    yield "bert", bert, batch + lengths(LONGEST)
    yield "bert-2", bert, batch + stages(2) + lengths(LONGEST)
    wide = slice_models.bert(layers=2, hidden=512, heads=8, vocabulary=2000, positions=64)
    yield "bert-wide", wide, batch + lengths(64)
    for name, model in (("unet", unet), ("resnet", resnet)):
        yield name, model, batch
        yield f"{name}-4", model, batch + stages(4)


def declared(alone_ms, saturates, largest=64):
    """A stage that takes the same up to so many rows, and more in proportion beyond."""
    return [round(alone_ms * max(1.0, rows / saturates), 4) for rows in range(1, largest + 1)]


def write_declared(folder, stages):
    """Declared, not measured: a network in stages as a GPU may run them."""
    folder.mkdir(parents=True, exist_ok=True)
    toml = COMMON + 'max_batch = 64\nwalk = "chain"\n'
    for at, (alone_ms, saturates) in enumerate(stages, 1):
        toml += f'\n[[block]]\nname = "stage{at}"\nlatency_ms = {declared(alone_ms, saturates)}\n'
    (folder / "model.toml").write_text(toml)
    print(folder)


def main():
    root = Path(sys.argv[1])
    emulated = root.with_name(root.name + "-emulated")
    write_declared(emulated / "unet-declared", [(10.0, 32), (10.0, 32), (3.0, 8), (3.0, 8)])
    write_declared(emulated / "resnet-declared", [(3.0, 8)] * 4)
    for name, model, toml in models():
        folder = root / name
        (folder / "1").mkdir(parents=True, exist_ok=True)
        onnx.save(model, folder / "1" / "model.onnx")
        (folder / "model.toml").write_text(COMMON + toml)
        print(folder)


if __name__ == "__main__":
    main()
