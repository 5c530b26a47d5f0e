"""What the two training scripts share: export, checks, samples, FLOP count.

torch is imported only where it is needed, so that `--check` runs without it.
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

MODELS_DIR = Path(__file__).resolve().parent.parent
OPSET = 17
REQUIRED_ACCURACY = 0.95
# The graphs keep to operators that every ONNX engine has.
PLAIN_OPS = {"Conv", "Relu", "Add", "MaxPool", "GlobalAveragePool", "Flatten", "Gemm"}


def model_path(name):
    return MODELS_DIR / "repository" / name / "1" / "model.onnx"


def samples_path(name):
    return MODELS_DIR / "samples" / f"{name}.json"


def parse_args(description, epochs):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--check",
        action="store_true",
        help="train nothing: evaluate the ONNX file in the repository and its "
        "sample file on the held-out data; exit 1 if the accuracy is below "
        f"{REQUIRED_ACCURACY * 100:.0f} %% or a file is not as expected",
    )
    parser.add_argument("--epochs", type=int, default=epochs, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="seed of weights and batches, default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads, default: %(default)s")
    parser.add_argument(
        "--bench",
        action="store_true",
        help="also time onnxruntime with one thread at batch 1, 8 and 32",
    )
    return parser.parse_args()


def to_input(ints, scale):
    """Stored integers to the FP32 values the model takes."""
    return ints.astype(np.float32) * np.float32(scale)


def session(path, threads):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def predict(sess, images, batch=64):
    parts = [
        sess.run(["logits"], {"image": images[i : i + batch]})[0]
        for i in range(0, len(images), batch)
    ]
    return np.concatenate(parts)


def count_right(sess, images, labels):
    return int((predict(sess, images).argmax(axis=1) == labels).sum())


def smoothed_loss(logits, labels):
    import torch.nn.functional as F

    return F.cross_entropy(logits, labels, label_smoothing=0.05)


def train(net, images, labels, *, epochs, batch, lr, weight_decay, augment=None, seed, loss_of=smoothed_loss):
    """AdamW with a one-cycle rate. Keeps the last weights: nothing is chosen
    by looking at held-out data."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    x = torch.from_numpy(images)
    y = torch.from_numpy(labels)
    steps = math.ceil(len(x) / batch)
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps * epochs)
    net.train()
    start = time.monotonic()
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=generator)
        total = 0.0
        for rows in order.split(batch):
            inputs = x[rows]
            if augment is not None:
                inputs = augment(inputs, generator)
            loss = loss_of(net(inputs), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(rows)
        print(
            f"epoch {epoch + 1}/{epochs}  loss {total / len(x):.4f}  "
            f"{time.monotonic() - start:.0f} s",
            flush=True,
        )
    net.eval()


def export(net, name, doc, images):
    """Write the ONNX file: batch axis "batch", shapes of all tensors inside.

    It is put in place whole and only if it computes what `net` computes on
    `images`: a server may be watching the repository.
    """
    import torch

    path = model_path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.onnx.export(
        net,
        (torch.from_numpy(images[:1]),),
        str(temporary),
        input_names=["image"],
        output_names=["logits"],
        dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        opset_version=OPSET,
        do_constant_folding=True,
        dynamo=False,
    )
    model = onnx.shape_inference.infer_shapes(
        onnx.load(temporary), check_type=True, strict_mode=True, data_prop=True
    )
    model.graph.name = name
    model.doc_string = doc
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, temporary)
    worst = difference(net, temporary, images)
    print(f"torch against onnxruntime, batch 1 and 8: largest difference {worst:.1e}")
    if worst > 1e-4:
        temporary.unlink()
        sys.exit("the exported model does not compute what the trained one does")
    os.replace(temporary, path)


def difference(net, path, images):
    """Largest difference between torch and onnxruntime at batch 1 and 8."""
    import torch

    sess = session(path, 1)
    worst = 0.0
    for batch in (1, 8):
        with torch.no_grad():
            expected = net(torch.from_numpy(images[:batch])).numpy()
        found = sess.run(["logits"], {"image": images[:batch]})[0]
        worst = max(worst, float(np.abs(expected - found).max()))
    return worst


def dims(value_info):
    return [d.dim_param or d.dim_value for d in value_info.type.tensor_type.shape.dim]


def graph_problems(path, row_shape, classes):
    """What is not as the README says; an empty list if all is well."""
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    problems = []
    float32 = onnx.TensorProto.FLOAT
    for wanted, shape, values in (
        ("image", ["batch", *row_shape], graph.input),
        ("logits", ["batch", classes], graph.output),
    ):
        found = [(v.name, v.type.tensor_type.elem_type, dims(v)) for v in values]
        if found != [(wanted, float32, shape)]:
            problems.append(f"expected {wanted} FP32 {shape}, found {found}")
    if [(o.domain, o.version) for o in model.opset_import] != [("", OPSET)]:
        problems.append("wrong opset")
    strange = {n.op_type for n in graph.node} - PLAIN_OPS
    if strange:
        problems.append(f"operators not in the plain set: {sorted(strange)}")
    if any(t.data_location == onnx.TensorProto.EXTERNAL for t in graph.initializer):
        problems.append("weights outside the file")
    known = {v.name: dims(v) for v in [*graph.value_info, *graph.output]}
    for node in graph.node:
        for out in node.output:
            if known.get(out, [None])[0] != "batch" or 0 in known[out]:
                problems.append(f"no full shape for {out}: {known.get(out)}")
    return problems


def flops_per_row(path):
    """Of Conv and Gemm, a multiply-add counted as two."""
    model = onnx.load(path)
    weights = {t.name: list(t.dims) for t in model.graph.initializer}
    shapes = {v.name: dims(v) for v in [*model.graph.value_info, *model.graph.output]}
    total = 0
    for node in model.graph.node:
        if node.op_type == "Conv":
            total += 2 * math.prod(weights[node.input[1]]) * math.prod(shapes[node.output[0]][2:])
        elif node.op_type == "Gemm":
            total += 2 * math.prod(weights[node.input[1]])
    return total


def parameters(path):
    return sum(math.prod(t.dims) for t in onnx.load(path).graph.initializer)


def choose(count, out_of, seed):
    """Which held-out rows become samples: by chance alone."""
    return np.random.default_rng(seed).choice(out_of, size=count, replace=False)


def make_samples(name, ints, labels, label_names, scale):
    return {
        "model": name,
        "input": "image",
        "shape": list(ints.shape[1:]),
        "scale": scale,
        "labels": label_names,
        "rows": [
            {"data": row.reshape(-1).tolist(), "label": int(label)}
            for row, label in zip(ints, labels)
        ],
    }


def write_samples(samples):
    """One row a line, so that a difference can be read."""
    head = {k: v for k, v in samples.items() if k != "rows"}
    rows = ",\n".join(json.dumps(r, separators=(",", ":")) for r in samples["rows"])
    text = json.dumps(head)[:-1] + ', "rows": [\n' + rows + "\n]}\n"
    path = samples_path(samples["model"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def samples_problems(stored, expected):
    for key in ("model", "input", "shape", "scale", "labels"):
        if stored[key] != expected[key]:
            return [f"samples: {key} differs"]
    if [r["label"] for r in stored["rows"]] != [r["label"] for r in expected["rows"]]:
        return ["samples: rows or labels differ"]
    a = np.array([r["data"] for r in stored["rows"]])
    b = np.array([r["data"] for r in expected["rows"]])
    # One step: another CPU may round a drawn pixel the other way.
    if a.shape != b.shape or np.abs(a - b).max() > 1:
        return ["samples: values differ"]
    return []


def check(name, ints, labels, samples, *, threads):
    """Evaluate what is in the repository. Returns the exit status."""
    path = model_path(name)
    problems = graph_problems(path, list(ints.shape[1:]), len(samples["labels"]))
    print(
        f"{name}: {path.stat().st_size} bytes, {parameters(path)} parameters, "
        f"{flops_per_row(path) / 1e6:.2f} MFLOP a row"
    )
    sess = session(path, threads)
    right = count_right(sess, to_input(ints, samples["scale"]), labels)
    accuracy = right / len(labels)
    print(f"held out: {right} of {len(labels)} right, {accuracy:.2%}")
    if accuracy < REQUIRED_ACCURACY:
        problems.append(f"accuracy {accuracy:.2%} is below {REQUIRED_ACCURACY:.0%}")

    stored = json.loads(samples_path(name).read_text())
    problems += samples_problems(stored, samples)
    rows = np.array([r["data"] for r in stored["rows"]]).reshape(-1, *stored["shape"])
    truth = np.array([r["label"] for r in stored["rows"]])
    right = count_right(sess, to_input(rows, stored["scale"]), truth)
    print(f"samples:  {right} of {len(truth)} right, {right / len(truth):.2%}")

    for problem in problems:
        print(f"PROBLEM: {problem}")
    return 1 if problems else 0


def bench(name, images, seconds=2.0):
    sess = session(model_path(name), 1)
    for batch in (1, 8, 32):
        rows = np.ascontiguousarray(images[:batch])
        for _ in range(3):
            sess.run(["logits"], {"image": rows})
        times = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 10:
            start = time.perf_counter()
            sess.run(["logits"], {"image": rows})
            times.append((time.perf_counter() - start) * 1e3)
        low, middle = np.min(times), np.median(times)
        print(
            f"onnxruntime, 1 thread, batch {batch:2}: median {middle:.3f} ms, "
            f"best {low:.3f} ms ({middle / batch:.3f} ms a row)"
        )


def seed_torch(seed, threads):
    import torch

    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
