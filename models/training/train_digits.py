#!/usr/bin/env python3
"""Train, export and check "digits": a dense network on 8x8 handwritten digits."""

import sys

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import common

NAME = "digits"
LABELS = [str(d) for d in range(10)]
SCALE = 1 / 16  # pixels are stored as 0..16
SPLIT_SEED = 20
SAMPLE_SEED = 21
SAMPLES = 64
WIDTH = 512


def load():
    """(train ints, train labels, held-out ints, held-out labels)"""
    data = load_digits()
    ints = data.images.astype(np.int64).reshape(-1, 1, 8, 8)
    labels = data.target.astype(np.int64)
    train_x, held_x, train_y, held_y = train_test_split(
        ints, labels, test_size=0.25, stratify=labels, random_state=SPLIT_SEED
    )
    return train_x, train_y, held_x, held_y


def build():
    """Dense layers only. At batch 1 such a network reads every weight for one
    row, so batches make it several times as fast per row."""
    from torch import nn

    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, len(LABELS)),
    )


def augment(images, generator):
    """Turn, scale and shift each image a little."""
    import torch
    import torch.nn.functional as F

    def uniform(limit):
        return (torch.rand(len(images), generator=generator) * 2 - 1) * limit

    angle, zoom = uniform(0.15), 1 + uniform(0.1)
    shift_x, shift_y = uniform(0.15), uniform(0.15)
    theta = torch.stack(
        [
            torch.stack([angle.cos() * zoom, -angle.sin() * zoom, shift_x], dim=1),
            torch.stack([angle.sin() * zoom, angle.cos() * zoom, shift_y], dim=1),
        ],
        dim=1,
    )
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


def main():
    args = common.parse_args(__doc__, epochs=60)
    train_x, train_y, held_x, held_y = load()
    chosen = common.choose(SAMPLES, len(held_x), SAMPLE_SEED)
    samples = common.make_samples(NAME, held_x[chosen], held_y[chosen], LABELS, SCALE)
    held = common.to_input(held_x, SCALE)

    if not args.check:
        common.seed_torch(args.seed, args.threads)
        net = build()
        common.train(
            net,
            common.to_input(train_x, SCALE),
            train_y,
            epochs=args.epochs,
            batch=64,
            lr=2e-3,
            weight_decay=1e-2,
            augment=augment,
            seed=args.seed,
        )
        doc = "8x8 handwritten digits, values 0..1 in, logits of 0..9 out."
        common.export(net, NAME, doc, held)
        common.write_samples(samples)

    status = common.check(NAME, held_x, held_y, samples, threads=args.threads)
    if args.bench:
        common.bench(NAME, held)
    return status


if __name__ == "__main__":
    sys.exit(main())
