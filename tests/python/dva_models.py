"""Models to measure DVABatch with, random weights: `python tests/python/dva_models.py DIR` writes a repository.

bert, a small BERT whose requests have lengths, and bert-2, in two stages; unet and resnet, whole, and each in four stages;
and `DIR-emulated`, a repository of one model for --device emulated: unet-declared, four stages of which the first two
saturate the device at 32 rows and the others at 8. What `ripieno compare` does with them stands in docs/performance.md.
"""

import sys
from pathlib import Path

import onnx

import slice_models

LONGEST = 256
# Nothing is refused: a late answer counts with its latency.
COMMON = 'slo_ms = 60000\nlate = "answer"\nmax_queue = 20000\n'
LENGTHS = f"""
max_length = {LONGEST}

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


def stages(count):
    return f'granularity = "stages"\nstages = {count}\n'


def models():
    """(name, model, model.toml)"""
    bert = slice_models.bert(layers=2, hidden=128, heads=4, vocabulary=2000, positions=LONGEST)
    unet = slice_models.unet(width=8, depth=3, size=64)
    resnet = slice_models.resnet50(width=16, size=64, classes=100)
    batch = "max_batch = 32\n"
    yield "bert", bert, batch + LENGTHS
    yield "bert-2", bert, batch + stages(2) + LENGTHS
    for name, model in (("unet", unet), ("resnet", resnet)):
        yield name, model, batch
        yield f"{name}-4", model, batch + stages(4)


def declared(alone_ms, saturates, largest=64):
    """A stage that takes the same up to so many rows, and more in proportion beyond."""
    return [round(alone_ms * max(1.0, rows / saturates), 4) for rows in range(1, largest + 1)]


def write_declared(root):
    """Declared, not measured: a segmentation network in four stages as a GPU may run it."""
    folder = root / "unet-declared"
    folder.mkdir(parents=True, exist_ok=True)
    stages = [(10.0, 32), (10.0, 32), (3.0, 8), (3.0, 8)]
    toml = COMMON + 'max_batch = 64\nwalk = "chain"\n'
    for at, (alone_ms, saturates) in enumerate(stages, 1):
        toml += f'\n[[block]]\nname = "stage{at}"\nlatency_ms = {declared(alone_ms, saturates)}\n'
    (folder / "model.toml").write_text(toml)
    print(folder)


def main():
    root = Path(sys.argv[1])
    write_declared(root.with_name(root.name + "-emulated"))
    for name, model, toml in models():
        folder = root / name
        (folder / "1").mkdir(parents=True, exist_ok=True)
        onnx.save(model, folder / "1" / "model.onnx")
        (folder / "model.toml").write_text(COMMON + toml)
        print(folder)


if __name__ == "__main__":
    main()
