#!/usr/bin/env python3
"""Train, export and check "sentiment": reviews, favourable or not, with an LSTM over characters."""

import sys

import cell_models
import sentiment_data

NAME = "sentiment"
STEPS = 2500
REQUIRED = 0.95
BATCH = 128
EMBEDDING, HIDDEN = 24, 128
TRAIN, HELD = 200_000, 4000
DATA_SEED, HELD_SEED, SAMPLE_SEED = 61, 62, 63
SAMPLES = 48


def build():
    from torch import nn

    return nn.ModuleDict(
        {
            "embedding": nn.Embedding(cell_models.CODES, EMBEDDING),
            "rnn": nn.LSTM(EMBEDDING, HIDDEN, batch_first=True),
            "head": nn.Linear(HIDDEN, len(sentiment_data.VERDICTS)),
        }
    )


def logits(net, tokens):
    _, (last, _) = net["rnn"](net["embedding"](tokens))
    return net["head"](last[-1])


def train(args):
    import torch
    import torch.nn.functional as F

    reviews = sentiment_data.examples(TRAIN, DATA_SEED, held=False)
    groups = cell_models.by_length([text for text, _ in reviews], BATCH)
    texts = [torch.tensor([cell_models.codes(reviews[i][0]) for i in group]) for group in groups]
    verdicts = [torch.tensor([reviews[i][1] for i in group]) for group in groups]
    cell_models.seed_torch(args.seed, args.threads)
    net = build()
    cell_models.fit(
        net,
        lambda i: F.cross_entropy(logits(net, texts[i]), verdicts[i]),
        len(groups),
        steps=args.steps,
        lr=5e-3,
        seed=args.seed,
    )
    return net


def export(net):
    from heads import Probable
    from ripieno_export.models import export_recurrent

    export_recurrent(
        cell_models.folder(NAME),
        net["rnn"],
        embedding=net["embedding"],
        head=Probable(net["head"]),
        output=("verdict", "probabilities"),
        max_length=256,
        max_batch=64,
        comment="Reviews, favourable or not, over ASCII codes: see ../../README.md.",
    )


def held_out(count, seed):
    reviews = sentiment_data.examples(count, seed, held=True)
    return [(text, cell_models.text_request(text), sentiment_data.VERDICTS[verdict]) for text, verdict in reviews]


def expected(net, rows):
    """What torch makes of some held-out reviews."""
    import torch

    pairs = []
    for text, inputs, _ in rows:
        with torch.no_grad():
            scores = logits(net, torch.tensor([cell_models.codes(text)]))
        answer = {"verdict": scores.argmax(1).numpy(), "probabilities": scores.softmax(1).numpy()}
        pairs.append((inputs, answer))
    return pairs


def main():
    args = cell_models.parse_args(__doc__, STEPS, REQUIRED)
    rows = held_out(HELD, HELD_SEED)
    samples = cell_models.make_samples(
        NAME, "verdict", "label", held_out(SAMPLES, SAMPLE_SEED), labels=sentiment_data.VERDICTS
    )
    if not args.check:
        net = train(args)
        export(net)
        cell_models.compare(NAME, expected(net, rows[:64]))
        cell_models.write_samples(samples)
    return cell_models.check(NAME, rows, samples, REQUIRED)


if __name__ == "__main__":
    sys.exit(main())
