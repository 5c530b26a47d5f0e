"""What the training scripts of the models in cells share.

Text goes in and comes out as ASCII codes, so that a client needs no vocabulary: 2 ("start of text") and 3 ("end of
text") are the marks of beginning and end.

torch is imported only where it is needed, so that `--check` runs without it.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import onnx

MODELS_DIR = Path(__file__).resolve().parent.parent
# The scripts export with the package that users export with.
sys.path.insert(0, str(MODELS_DIR.parent / "clients" / "python"))

CODES = 128
START, END = 2, 3
# The engine in the binary runs these, and so does every other.
PLAIN_OPS = {
    "Add", "ArgMax", "Concat", "Constant", "Equal", "Gather", "Gemm", "MatMul", "Mul", "Sigmoid", "Softmax", "Split",
    "Tanh",
}  # fmt: skip
SIZE_LIMIT = 1_500_000


def folder(name):
    return MODELS_DIR / "repository" / name


def parse_args(description, steps, required):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--check",
        action="store_true",
        help="train nothing: evaluate the cells in the repository and the sample file on the held-out data; exit 1 if "
        f"fewer than {required * 100:.0f} %% are exact or a file is not as expected",
    )
    parser.add_argument("--steps", type=int, default=steps, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="seed of weights and batches, default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads, default: %(default)s")
    return parser.parse_args()


def codes(text):
    return list(text.encode("ascii"))


def by_length(texts, batch):
    """Indices of texts in groups of up to `batch` of the same length: such a group needs no padding."""
    lengths = {}
    for index, text in enumerate(texts):
        lengths.setdefault(len(text), []).append(index)
    return [same[i : i + batch] for same in lengths.values() for i in range(0, len(same), batch)]


def fit(net, loss_of, batches, *, steps, lr, seed):
    """AdamW with a one-cycle rate over batches in random order. Keeps the last weights."""
    import torch

    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    chance = np.random.default_rng(seed)
    order = np.concatenate([chance.permutation(batches) for _ in range(math.ceil(steps / batches))])
    start, total = time.monotonic(), 0.0
    for step in range(steps):
        loss = loss_of(int(order[step]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        total += loss.item()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}/{steps}  loss {total / 100:.5f}  {time.monotonic() - start:.0f} s", flush=True)
            total = 0.0
    net.eval()


def seed_torch(seed, threads):
    import torch

    torch.manual_seed(seed)
    torch.set_num_threads(threads)


def request(name, array):
    """A tensor as the inference protocol has it in JSON: what a client posts in "inputs"."""
    return {"name": name, "datatype": "INT64", "shape": list(array.shape), "data": array.reshape(-1).tolist()}


def as_arrays(inputs):
    return {i["name"]: np.array(i["data"], np.int64).reshape(i["shape"]) for i in inputs}


def text_request(text):
    return [request("token", np.array([codes(text)]))]


def make_samples(name, output, reads, rows, **more):
    """`rows` are (text, inputs, answer). `reads` says how to read the output: "text", codes up to the mark of the end;
    "number"; or "label", an index into `labels`."""
    return {
        "model": name, "output": output, "reads": reads, **more,
        "rows": [{"text": text, "answer": answer, "inputs": inputs} for text, inputs, answer in rows],
    }  # fmt: skip


def read(samples, output):
    """An output as a person reads it."""
    if samples["reads"] == "text":
        said = output.reshape(-1).tolist()
        return bytes(said[: said.index(END)] if END in said else said).decode("ascii", "replace")
    number = int(output.reshape(-1)[0])
    return samples["labels"][number] if samples["reads"] == "label" else str(number)


def write_samples(samples):
    """One row a line, so that a difference can be read."""
    head = {k: v for k, v in samples.items() if k != "rows"}
    rows = ",\n".join(json.dumps(r, separators=(",", ":")) for r in samples["rows"])
    path = samples_path(samples["model"])
    path.write_text(json.dumps(head)[:-1] + ', "rows": [\n' + rows + "\n]}\n")


def samples_path(name):
    return MODELS_DIR / "samples" / f"{name}.json"


def check(name, rows, samples, required):
    """Evaluates what is in the repository on the held-out `rows` of (text, inputs, answer), each run alone, cell by
    cell. Returns the exit status."""
    from ripieno_export.reference import Reference

    problems = []
    for path in sorted(folder(name).glob("1/*.onnx")):
        print(f"{name}: {path.name} {path.stat().st_size} bytes")
        strange = {node.op_type for node in onnx.load(path).graph.node} - PLAIN_OPS
        if strange:
            problems.append(f"{path.name}: operators not in the plain set: {sorted(strange)}")
        if path.stat().st_size > SIZE_LIMIT:
            problems.append(f"{path.name}: more than {SIZE_LIMIT} bytes")
    reference = Reference(folder(name))

    def answer(inputs):
        return read(samples, reference(**as_arrays(inputs))[samples["output"]])

    said = [(text, answer(inputs), truth) for text, inputs, truth in rows]
    wrong = [entry for entry in said if entry[1] != entry[2]]
    exact = 1 - len(wrong) / len(said)
    print(f"held out: {len(said) - len(wrong)} of {len(said)} exact, {exact:.2%}")
    for text, found, truth in wrong[:5]:
        print(f"  wrong: {text!r}: said {found!r}, is {truth!r}")
    if exact < required:
        problems.append(f"{exact:.2%} exact is below {required:.0%}")
    if json.loads(samples_path(name).read_text()) != json.loads(json.dumps(samples)):
        problems.append("samples: not those that the seed draws from the held-out data")
    right = sum(answer(row["inputs"]) == row["answer"] for row in samples["rows"])
    print(f"samples:  {right} of {len(samples['rows'])} exact")
    for problem in problems:
        print(f"PROBLEM: {problem}")
    return 1 if problems else 0


def compare(name, pairs):
    """Each pair (inputs, outputs of torch) against the exported cells run step by step: integers equal, numbers within
    1e-5 of the largest."""
    from ripieno_export.cells import TOLERANCE, relative_difference
    from ripieno_export.reference import Reference

    reference, worst = Reference(folder(name)), 0.0
    for inputs, expected in pairs:
        found = reference(**as_arrays(inputs))
        for key, tensor in expected.items():
            if tensor.dtype.kind == "i" and not np.array_equal(tensor, found[key]):
                sys.exit(f"{name}: {key} of the exported cells is not torch's: {found[key]} instead of {tensor}")
            worst = max(worst, relative_difference(tensor, found[key]))
    print(f"torch against the cells step by step, {len(pairs)} requests: largest difference {worst:.1e}")
    if worst > TOLERANCE:
        sys.exit("the exported cells do not compute what the trained modules do")
