#!/usr/bin/env python3
"""Train, export and check "dates": dates in many ways of writing to ISO 8601, encoder-decoder over characters."""

import sys

import numpy as np

import cell_models
import dates_data

NAME = "dates"
STEPS = 3000
REQUIRED = 0.98
BATCH = 128
EMBEDDING, HIDDEN = 32, 192
TRAIN, HELD = 300_000, 4000
DATA_SEED, HELD_SEED, SAMPLE_SEED = 41, 42, 43
SAMPLES = 48
LIMIT = 16


def build():
    from torch import nn

    def half():
        return nn.ModuleDict(
            {
                "embedding": nn.Embedding(cell_models.CODES, EMBEDDING),
                "rnn": nn.LSTM(EMBEDDING, HIDDEN, batch_first=True),
            }
        )

    return nn.ModuleDict({"encoder": half(), "decoder": half(), "head": nn.Linear(HIDDEN, cell_models.CODES)})


def loss_of(net, texts, dates):
    """Teacher forcing: the decoder sees the right character before the one it is to say."""
    import torch
    import torch.nn.functional as F

    _, state = net["encoder"]["rnn"](net["encoder"]["embedding"](texts))
    start = torch.full((len(texts), 1), cell_models.START)
    states, _ = net["decoder"]["rnn"](net["decoder"]["embedding"](torch.cat([start, dates[:, :-1]], 1)), state)
    return F.cross_entropy(net["head"](states).flatten(0, 1), dates.flatten())


def decode(net, text):
    """One text, step by step as it will be served."""
    import torch

    with torch.no_grad():
        _, state = net["encoder"]["rnn"](net["encoder"]["embedding"](torch.tensor([cell_models.codes(text)])))
        token, answer = torch.tensor([[cell_models.START]]), []
        while len(answer) < LIMIT and (not answer or answer[-1] != cell_models.END):
            states, state = net["decoder"]["rnn"](net["decoder"]["embedding"](token), state)
            token = net["head"](states).argmax(2)
            answer.append(int(token))
    return answer


def train(args):
    import torch

    days, _ = dates_data.split()
    pairs = dates_data.examples(days, TRAIN, DATA_SEED)
    groups = cell_models.by_length([text for text, _ in pairs], BATCH)
    texts = [torch.tensor([cell_models.codes(pairs[i][0]) for i in group]) for group in groups]
    dates = [torch.tensor([[*cell_models.codes(pairs[i][1]), cell_models.END] for i in group]) for group in groups]
    cell_models.seed_torch(args.seed, args.threads)
    net = build()
    cell_models.fit(
        net, lambda i: loss_of(net, texts[i], dates[i]), len(groups), steps=args.steps, lr=3e-3, seed=args.seed
    )
    return net


def export(net):
    from ripieno_export.models import export_encode_decode

    export_encode_decode(
        cell_models.folder(NAME),
        encoder=(net["encoder"]["embedding"], net["encoder"]["rnn"]),
        decoder=(net["decoder"]["embedding"], net["decoder"]["rnn"]),
        head=net["head"],
        start=cell_models.START,
        end=cell_models.END,
        max_length=64,
        max_steps=LIMIT,
        max_batch=64,
        comment="Dates in many ways of writing to ISO 8601, as ASCII codes: see ../../README.md.",
    )


def held_out(count, seed):
    _, days = dates_data.split()
    return [(text, cell_models.text_request(text), iso) for text, iso in dates_data.examples(days, count, seed)]


def main():
    args = cell_models.parse_args(__doc__, STEPS, REQUIRED)
    rows = held_out(HELD, HELD_SEED)
    samples = cell_models.make_samples(NAME, "tokens", "text", held_out(SAMPLES, SAMPLE_SEED))
    if not args.check:
        net = train(args)
        export(net)
        expected = [(inputs, {"tokens": np.array([decode(net, text)])}) for text, inputs, _ in rows[:64]]
        cell_models.compare(NAME, expected)
        cell_models.write_samples(samples)
    return cell_models.check(NAME, rows, samples, REQUIRED)


if __name__ == "__main__":
    sys.exit(main())
