#!/usr/bin/env python3
"""Train, export and check "shapes-exits": a CNN in three blocks that may answer after each of them."""

import os
import sys
import tomllib

import numpy as np
import onnx

import common
import train_shapes as shapes

NAME = "shapes-exits"
BLOCKS = ("glance", "look", "study")
# A third stream of the same drawings: the thresholds are chosen on it, and neither trained nor reported on.
THRESHOLDS = 2
THRESHOLD_ROWS = 4000
# Of accuracy, on that stream.
ALLOWED_LOSS = 0.002
REQUIRED_SAVING = 0.30
HELD_OUT_LOSS = 0.005
OPS = common.PLAIN_OPS | {"Softmax", "ReduceMax"}


def path_of(block):
    return common.MODELS_DIR / "repository" / NAME / "1" / f"{block}.onnx"


def build():
    """Three blocks, each a trunk that goes on and a head that may end it.

    The heads shrink the image by themselves, so that a head in front does not cost the blocks behind it any detail.
    """
    from torch import nn

    def conv(inputs, outputs, stride=1):
        return [
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),  # folded into the convolution at export
            nn.ReLU(),
        ]

    def classify(features):
        return [nn.Flatten(), nn.Linear(features, len(shapes.LABELS))]

    class Block(nn.Module):
        """Gives (what goes on, logits, the share of the likeliest class); the last block gives logits."""

        def __init__(self, trunk, head, last=False):
            super().__init__()
            self.trunk, self.head, self.last = nn.Sequential(*trunk), nn.Sequential(*head), last

        def forward(self, x):
            features = self.trunk(x)
            logits = self.head(features)
            if self.last:
                return logits
            return features, logits, logits.softmax(1).amax(1, keepdim=True)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(
                [
                    Block(
                        [*conv(3, 16, 2), *conv(16, 24)],  # 16x16
                        [*conv(24, 32, 2), *conv(32, 32, 2), *classify(32 * 4 * 4)],
                    ),
                    Block(
                        [*conv(24, 32), nn.MaxPool2d(2), *conv(32, 64)],  # 8x8
                        [*conv(64, 48, 2), *classify(48 * 4 * 4)],
                    ),
                    Block(
                        [*conv(64, 64), *conv(64, 64), nn.MaxPool2d(2), *conv(64, 128), *conv(128, 128)],  # 4x4
                        classify(128 * 4 * 4),
                        last=True,
                    ),
                ]
            )

        def forward(self, x):
            """The logits of all exits."""
            answers = []
            for block in self.blocks[:-1]:
                x, logits, _ = block(x)
                answers.append(logits)
            return [*answers, self.blocks[-1](x)]

    return Net()


def loss_of(answers, labels):
    """All exits learn at once, the last one with the most say. Nothing is smoothed: the likeliest class's share shall
    mean what it says."""
    import torch.nn.functional as F

    return sum(weight * F.cross_entropy(logits, labels) for weight, logits in zip((0.3, 0.5, 1.0), answers))


def names_of(at):
    """(inputs, outputs) of a block."""
    taken = ["image"] if at == 0 else [f"features{at}"]
    if at == len(BLOCKS) - 1:
        return taken, ["logits"]
    number = at + 1
    return taken, [f"features{number}", f"exit{number}_logits", f"exit{number}_confidence"]


def export(net, images):
    """Writes the three files if they compute what `net` does."""
    import torch

    x = torch.from_numpy(images[:8])
    path_of(BLOCKS[0]).parent.mkdir(parents=True, exist_ok=True)
    drafts = []
    for at, (block, name) in enumerate(zip(net.blocks, BLOCKS)):
        draft = path_of(name).with_suffix(".tmp")
        taken, given = names_of(at)
        torch.onnx.export(
            block,
            (x[:1],),
            str(draft),
            input_names=taken,
            output_names=given,
            dynamic_axes={tensor: {0: "batch"} for tensor in [*taken, *given]},
            opset_version=common.OPSET,
            do_constant_folding=True,
            dynamo=False,
        )
        model = onnx.shape_inference.infer_shapes(
            onnx.load(draft), check_type=True, strict_mode=True, data_prop=True
        )
        model.graph.name = f"{NAME}-{name}"
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, draft)
        with torch.no_grad():
            expected = block(x)
        expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
        worst = 0.0
        for rows in (1, 8):
            found = common.session(draft, 1).run(given, {taken[0]: x[:rows].numpy()})
            worst = max(worst, *(float(np.abs(e.numpy()[:rows] - f).max()) for e, f in zip(expected, found)))
        print(f"{name}: torch against onnxruntime, batch 1 and 8: largest difference {worst:.1e}")
        if worst > 1e-4:
            sys.exit("the exported block does not compute what the trained one does")
        drafts.append(draft)
        x = expected[0]
    for name, draft in zip(BLOCKS, drafts):
        os.replace(draft, path_of(name))


def answers_of(images, threads):
    """For each exit (class, confidence) of every image; the last is always sure."""
    sessions = [common.session(path_of(name), threads) for name in BLOCKS]
    parts = []
    for first in range(0, len(images), 64):
        x, rows = images[first : first + 64], []
        for at, session in enumerate(sessions):
            taken, given = names_of(at)
            found = session.run(given, {taken[0]: x})
            x = found[0]
            logits = found[-2] if len(found) == 3 else found[0]
            sure = found[-1][:, 0] if len(found) == 3 else np.ones(len(x), np.float32)
            rows.append(np.stack([logits.argmax(axis=1), sure]))
        parts.append(np.stack(rows))
    return np.concatenate(parts, axis=2)


def with_exits(answers, labels, thresholds):
    """(accuracy, the share of images that each block answers)."""
    sure = np.stack([answers[at, 1] > threshold for at, threshold in enumerate([*thresholds, -1.0])])
    leaves = sure.argmax(axis=0)
    said = answers[leaves, 0, np.arange(len(labels))]
    shares = np.bincount(leaves, minlength=len(BLOCKS)) / len(labels)
    return float((said == labels).mean()), shares


def cost(shares, weights):
    """What is left of the work: each block runs for those that have not left before."""
    reached = 1 - np.concatenate([[0.0], np.cumsum(shares)[:-1]])
    return float((reached * weights).sum() / np.sum(weights))


def choose_thresholds(answers, labels, weights):
    """The pair that saves most work of those that lose little accuracy."""
    full = float((answers[-1, 0] == labels).mean())
    steps = [0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995]
    best = (2.0, None)
    for first in steps:
        for second in steps:
            accuracy, shares = with_exits(answers, labels, (first, second))
            if accuracy >= full - ALLOWED_LOSS:
                best = min(best, (cost(shares, weights), (first, second)))
    return best[1]


def thresholds_of_toml():
    """Those that the server uses."""
    text = (common.MODELS_DIR / "repository" / NAME / "model.toml").read_text()
    rules = [block.get("exit_when") for block in tomllib.loads(text)["block"]]
    return [float(rule.split(">")[1]) for rule in rules if rule]


def graph_problems():
    problems = []
    for at, name in enumerate(BLOCKS):
        model = onnx.load(path_of(name), load_external_data=False)
        taken, given = names_of(at)
        for wanted, values in ((taken, model.graph.input), (given, model.graph.output)):
            found = [value.name for value in values]
            if found != wanted or any(common.dims(value)[0] != "batch" for value in values):
                problems.append(f"{name}: expected {wanted} with the batch first, found {found}")
        strange = {node.op_type for node in model.graph.node} - OPS
        if strange:
            problems.append(f"{name}: operators not in the plain set: {sorted(strange)}")
    return problems


def report(title, answers, labels, thresholds, weights):
    accuracy, shares = with_exits(answers, labels, thresholds)
    each = ", ".join(f"{name} {share:.1%}" for name, share in zip(BLOCKS, shares))
    print(f"{title}: {accuracy:.2%} right; answered by {each}; {cost(shares, weights):.1%} of the work")
    return accuracy, shares


def check(held_x, held_y, thresholds, threads):
    """Evaluates what is in the repository. Returns the exit status."""
    problems = graph_problems()
    weights = [common.flops_per_row(path_of(name)) for name in BLOCKS]
    for name, flops in zip(BLOCKS, weights):
        path = path_of(name)
        print(f"{name}: {path.stat().st_size} bytes, {common.parameters(path)} parameters, {flops / 1e6:.2f} MFLOP a row")
    answers = answers_of(common.to_input(held_x, shapes.SCALE), threads)
    for at, name in enumerate(BLOCKS):
        print(f"held out, all by {name}: {float((answers[at, 0] == held_y).mean()):.2%} right")
    full, _ = report("held out, no exits", answers, held_y, (2.0, 2.0), weights)
    early, shares = report(f"held out, exits above {thresholds}", answers, held_y, thresholds, weights)
    if early < common.REQUIRED_ACCURACY or early < full - HELD_OUT_LOSS:
        problems.append(f"accuracy with exits is {early:.2%}, {full:.2%} without")
    if cost(shares, weights) > 1 - REQUIRED_SAVING:
        problems.append("the exits save too little work")
    for problem in problems:
        print(f"PROBLEM: {problem}")
    return 1 if problems else 0


def main():
    args = common.parse_args(__doc__, epochs=12)
    held_x, held_y = shapes.generate(shapes.HELD_OUT, shapes.HELD_OUT_ROWS)
    if args.check:
        return check(held_x, held_y, thresholds_of_toml(), args.threads)
    train_x, train_y = shapes.generate(shapes.TRAIN, shapes.TRAIN_ROWS)
    common.seed_torch(args.seed, args.threads)
    net = build()
    common.train(
        net,
        common.to_input(train_x, shapes.SCALE),
        train_y,
        epochs=args.epochs,
        batch=64,
        lr=3e-3,
        weight_decay=2e-2,
        augment=shapes.augment,
        seed=args.seed,
        loss_of=loss_of,
    )
    export(net, common.to_input(held_x[:8], shapes.SCALE))
    other_x, other_y = shapes.generate(THRESHOLDS, THRESHOLD_ROWS)
    answers = answers_of(common.to_input(other_x, shapes.SCALE), args.threads)
    weights = [common.flops_per_row(path_of(name)) for name in BLOCKS]
    thresholds = choose_thresholds(answers, other_y, weights)
    print(f"exit_when in model.toml: confidence above {thresholds}, chosen on images of a third stream")
    return check(held_x, held_y, thresholds, args.threads)


if __name__ == "__main__":
    sys.exit(main())
