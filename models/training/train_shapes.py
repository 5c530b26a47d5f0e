#!/usr/bin/env python3
"""Train, export and check "shapes": a CNN with wide dense layers on drawn 32x32 colour images."""

import sys

import numpy as np

import common

NAME = "shapes"
LABELS = [
    "circle",
    "square",
    "triangle",
    "star",
    "cross",
    "ring",
    "crescent",
    "heart",
    "stripes",
    "checkerboard",
]
SCALE = 1 / 255  # pixels are stored as 0..255
SIZE = 32
OVERSAMPLE = 2
DATA_SEED = 30
TRAIN, HELD_OUT = 0, 1  # streams of the generator
TRAIN_ROWS = 32000
HELD_OUT_ROWS = 4000
SAMPLE_SEED = 31
SAMPLES = 32

_axis = (np.arange(SIZE * OVERSAMPLE) + 0.5) / OVERSAMPLE - SIZE / 2
GRID_Y, GRID_X = np.meshgrid(_axis, _axis, indexing="ij")


def polygon(x, y, corners):
    """Points inside a regular polygon whose corners lie at distance 1."""
    inner = np.cos(np.pi / corners)
    inside = np.ones_like(x, dtype=bool)
    for k in range(corners):
        a = 2 * np.pi * (k + 0.5) / corners
        inside &= x * np.cos(a) + y * np.sin(a) < inner
    return inside


def outline(label, x, y, rng):
    """Where the figure is, in coordinates in which its reach is about 1."""
    r2 = x * x + y * y
    name = LABELS[label]
    if name == "circle":
        return r2 < 0.85**2
    if name == "square":
        return polygon(x, y, 4)
    if name == "triangle":
        return polygon(x, y, 3)
    if name == "star":
        # A five-pointed star: in each fifth, inside the line from tip to notch.
        angle = np.abs((np.arctan2(y, x) + np.pi / 5) % (2 * np.pi / 5) - np.pi / 5)
        r = np.sqrt(r2)
        u, v = r * np.cos(angle), r * np.sin(angle)
        notch = rng.uniform(0.38, 0.5)
        nu, nv = notch * np.cos(np.pi / 5), notch * np.sin(np.pi / 5)
        return (u - 1) * nv - v * (nu - 1) < 0
    if name == "cross":
        half = rng.uniform(0.2, 0.32)
        ax, ay = np.abs(x), np.abs(y)
        return (np.minimum(ax, ay) < half) & (np.maximum(ax, ay) < 0.95)
    if name == "ring":
        return (r2 < 0.9**2) & (r2 > rng.uniform(0.45, 0.65) ** 2)
    if name == "crescent":
        shift = rng.uniform(0.35, 0.55)
        return (r2 < 0.95**2) & ((x - shift) ** 2 + y * y > 0.8**2)
    if name == "heart":
        u, v = 1.2 * x, 1.2 * y + 0.15
        q = u * u + v * v - 0.8
        return q * q * q < u * u * v * v * v * 1.6
    # The two textures fill a patch of any form, as large as the figures.
    patch = polygon(x, y, int(rng.integers(4, 9)))
    period = rng.uniform(0.42, 0.7)
    phase = rng.uniform(0, period, size=2)
    wave_x = (x + phase[0]) % period < period / 2
    if name == "stripes":
        return patch & wave_x
    wave_y = (y + phase[1]) % period < period / 2
    return patch & (wave_x ^ wave_y)


def soft_noise(rng, cells):
    """Random blots: a coarse grid of values, stretched to the image."""
    grid = rng.uniform(-1, 1, size=(cells + 1, cells + 1))
    at = np.linspace(0, cells, SIZE, endpoint=False)
    low = at.astype(int)
    part = at - low
    rows = grid[low] * (1 - part)[:, None] + grid[low + 1] * part[:, None]
    return rows[:, low] * (1 - part) + rows[:, low + 1] * part


def draw(stream, index):
    """Image number `index` of a stream: (3x32x32 uint8, label). It depends on
    nothing else, so data sets of different sizes agree where they overlap."""
    rng = np.random.default_rng([DATA_SEED, stream, index])
    label = int(rng.integers(len(LABELS)))

    # Background: a colour that runs into another one, with blots.
    back = rng.uniform(0, 1, size=3)
    to = np.clip(back + rng.uniform(-0.3, 0.3, size=3), 0, 1)
    turn = rng.uniform(0, 2 * np.pi)
    ramp = (np.cos(turn) * _axis[::OVERSAMPLE, None] + np.sin(turn) * _axis[None, ::OVERSAMPLE]) / SIZE + 0.5
    image = back[:, None, None] * (1 - ramp) + to[:, None, None] * ramp
    image += rng.uniform(0, 0.15) * soft_noise(rng, int(rng.integers(2, 7)))

    # Figure: size, place, turn, a little skew; a colour that stands out enough.
    radius = rng.uniform(7.0, 14.0)
    reach = SIZE / 2 - 0.8 * radius
    dx, dy = rng.uniform(-reach, reach, size=2)
    turn = rng.uniform(0, 2 * np.pi)
    stretch = rng.uniform(0.88, 1.12)
    x, y = (GRID_X - dx) / radius, (GRID_Y - dy) / radius
    u = (np.cos(turn) * x + np.sin(turn) * y) * stretch
    v = (np.cos(turn) * y - np.sin(turn) * x) / stretch
    cover = outline(label, u, v, rng).reshape(SIZE, OVERSAMPLE, SIZE, OVERSAMPLE).mean(axis=(1, 3))
    middle = (back + to) / 2
    while True:
        colour = rng.uniform(0, 1, size=3)
        if np.linalg.norm(colour - middle) > 0.4:
            break
    shade = colour[:, None, None] * (1 + rng.uniform(0, 0.15) * soft_noise(rng, 3))
    image = image * (1 - cover) + shade * cover

    # Up to two thin lines across everything.
    for _ in range(int(rng.integers(0, 3))):
        turn = rng.uniform(0, 2 * np.pi)
        away = rng.uniform(-12, 12)
        far = np.abs(np.cos(turn) * GRID_X + np.sin(turn) * GRID_Y - away) < rng.uniform(0.4, 0.8)
        line = far.reshape(SIZE, OVERSAMPLE, SIZE, OVERSAMPLE).mean(axis=(1, 3))
        image = image * (1 - line) + rng.uniform(0, 1, size=3)[:, None, None] * line

    image += rng.normal(0, rng.uniform(0.02, 0.10), size=image.shape)
    return np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8), label


def generate(stream, rows):
    images = np.empty((rows, 3, SIZE, SIZE), dtype=np.uint8)
    labels = np.empty(rows, dtype=np.int64)
    for i in range(rows):
        images[i], labels[i] = draw(stream, i)
    return images, labels


def build():
    """A lean convolutional front and wide dense layers.

    A convolution uses each of its weights at many places of even one image, so
    a batch hardly helps it. A dense layer reads each weight for one
    multiply-add a row: here 96 % of the weights are in dense layers, and a
    batch reads them once for all its rows.
    """
    from torch import nn

    def conv(inputs, outputs, stride=1):
        return [
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),  # folded into the convolution at export
            nn.ReLU(),
        ]

    return nn.Sequential(
        *conv(3, 16, stride=2),  # 16x16
        *conv(16, 32),
        nn.MaxPool2d(2),  # 8x8
        *conv(32, 64),
        *conv(64, 64),
        nn.MaxPool2d(2),  # 4x4
        *conv(64, 96),
        nn.Flatten(),
        nn.Linear(96 * 4 * 4, 1376),
        nn.ReLU(),
        nn.Linear(1376, 544),
        nn.ReLU(),
        nn.Linear(544, len(LABELS)),
    )


def augment(images, generator):
    """Mirror each image or not, in three ways: no kind of figure minds."""
    import torch

    for mirror in (lambda t: t.flip(2), lambda t: t.flip(3), lambda t: t.transpose(2, 3)):
        toss = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
        images = torch.where(toss, mirror(images), images)
    return images


def main():
    args = common.parse_args(__doc__, epochs=12)
    held_x, held_y = generate(HELD_OUT, HELD_OUT_ROWS)
    chosen = common.choose(SAMPLES, len(held_x), SAMPLE_SEED)
    samples = common.make_samples(NAME, held_x[chosen], held_y[chosen], LABELS, SCALE)
    held = common.to_input(held_x, SCALE)

    if not args.check:
        train_x, train_y = generate(TRAIN, TRAIN_ROWS)
        common.seed_torch(args.seed, args.threads)
        net = build()
        common.train(
            net,
            common.to_input(train_x, SCALE),
            train_y,
            epochs=args.epochs,
            batch=64,
            lr=2e-3,
            weight_decay=2e-2,
            augment=augment,
            seed=args.seed,
        )
        doc = "Drawn 32x32 colour images, values 0..1 in, logits of 10 kinds of figure out."
        common.export(net, NAME, doc, held)
        common.write_samples(samples)

    status = common.check(NAME, held_x, held_y, samples, threads=args.threads)
    if args.bench:
        common.bench(NAME, held)
    return status


if __name__ == "__main__":
    sys.exit(main())
