"""Serves models as they come: `python tests/models`, in the environment of tests/python (`cargo xtask venv` makes it).

Writes the architectures of `architectures.py`, serves all of them without a model.toml on both engines, and prints a row for
each: whether it serves at the first try, whether its answers equal those of ONNX Runtime alone, one after the other and from
eight clients at once, and the latency of one row that `serve` shows beside the one that requests take in the engine: of
requests one right after the other (busy), and with pauses (idle), in which a processor forgets some 0.2 ms of the model.
Exits with 1 if fewer serve than `--least` says, or any answer differs.
"""

import argparse
import http.client
import json
import pathlib
import statistics
import sys
import tempfile
import threading
import time
import urllib.request

import numpy as np
import onnxruntime

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from architectures import ALL, request  # noqa: E402
from net import FLOAT, INT64, UINT8  # noqa: E402
from serving import BINARY, Server  # noqa: E402

KINDS = {"float32": "FP32", "int64": "INT64", "uint8": "UINT8"}
CLIENTS, CALLS, TIMED, BUSY = 8, 4, 12, 60
TOLERANCE = 2e-3


def encoded(tensors):
    """The body of a request, and its header for the length of the JSON part."""
    heads, parts = [], []
    for tensor, array in tensors.items():
        part = np.ascontiguousarray(array).tobytes()
        binary = {"binary_data_size": len(part)}
        heads.append(dict(name=tensor, shape=list(array.shape), datatype=KINDS[array.dtype.name], parameters=binary))
        parts.append(part)
    head = json.dumps({"inputs": heads}).encode()
    return head + b"".join(parts), {"Inference-Header-Content-Length": str(len(head))}


def infer(server, name, tensors):
    """The outputs of a request, by name."""
    data, headers = encoded(tensors)
    post = urllib.request.Request(f"http://{server.http}/v2/models/{name}/infer", data=data, headers=headers)
    with urllib.request.urlopen(post, timeout=60) as reply:
        return {output["name"]: np.reshape(output["data"], output["shape"]) for output in json.load(reply)["outputs"]}


def compute_ns(server, name):
    """Number of executions so far, and the time of their rows in the engine."""
    with urllib.request.urlopen(f"http://{server.http}/v2/models/{name}/stats", timeout=60) as reply:
        stats = json.load(reply)["model_stats"][0]
    spent = stats["inference_stats"]["compute_infer"]
    return spent["count"], spent["ns"]


def busy_ms(server, name, tensors):
    """The mean time in the engine of requests that follow each other without a pause."""
    data, headers = encoded(tensors)
    connection = http.client.HTTPConnection(server.http, timeout=60)
    until, before = time.monotonic() + 2.0, compute_ns(server, name)
    for _ in range(BUSY):
        connection.request("POST", f"/v2/models/{name}/infer", data, headers)
        connection.getresponse().read()
        if time.monotonic() > until:
            break
    after = compute_ns(server, name)
    return (after[1] - before[1]) / max(1, after[0] - before[0]) / 1e6


def apart(expected, found):
    """The largest difference of two answers, relative to the largest number of each output."""
    most = 0.0
    for name, array in expected.items():
        other = found.get(name)
        if other is None or list(other.shape) != list(array.shape):
            return float("inf")
        most = max(most, float(np.abs(array - other).max() / max(np.abs(array).max(), 1e-6)))
    return most


def alone(session, tensors):
    return dict(zip((output.name for output in session.get_outputs()), session.run(None, tensors), strict=True))


def crowd(server, name, requests, expected):
    """The largest difference from eight clients at once, and the first error."""
    worst, errors = [0.0], []

    def client(at):
        for call in range(CALLS):
            which = (at * CALLS + call) % len(requests)
            try:
                worst.append(apart(expected[which], infer(server, name, requests[which])))
            except OSError as error:
                errors.append(describe(error))

    threads = [threading.Thread(target=client, args=(at,)) for at in range(CLIENTS)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return max(worst), errors[:1]


def describe(error):
    body = getattr(error, "read", lambda: b"")()
    return f"{error} {body.decode(errors='replace')}".strip()


def judge(server, name, report, session, inputs):
    """The row of a model that serves."""
    kinds = [tensor.name for tensor in session.get_inputs()]
    requests = [request(inputs, seed, kinds) for seed in range(CLIENTS)]
    expected = [alone(session, tensors) for tensors in requests]
    try:
        single = max(apart(expected[at], infer(server, name, tensors)) for at, tensors in enumerate(requests))
    except OSError as error:
        return {"serves": False, "why": describe(error)}
    spent = []
    for at in range(TIMED):
        before = compute_ns(server, name)
        infer(server, name, requests[at % CLIENTS])
        after = compute_ns(server, name)
        spent.append((after[1] - before[1]) / max(1, after[0] - before[0]) / 1e6)
    idle, busy = statistics.median(spent), busy_ms(server, name, requests[0])
    together, errors = crowd(server, name, requests, expected)
    shown = report["profile"]["latency_ms"][0]
    return {
        "serves": not errors, "why": errors[0] if errors else "", "alone": single, "together": together,
        "shown_ms": shown, "busy_ms": busy, "idle_ms": idle, "measured_at": report.get("measured_at"), "unbatched": report["unbatched"],
    }  # fmt: skip


def tried(engine, folder, models, binary):
    """The row of each model on an engine."""
    with Server(folder, "--engine", engine, binary=binary) as server:
        rows = {}
        for report in sorted(server.ready["models"], key=lambda report: report["name"]):
            name = report["name"]
            if report["error"]:
                rows[name] = {"serves": False, "why": report["error"]}
            else:
                rows[name] = judge(server, name, report, *models[name])
        return rows


def declare(folder, net, inputs):
    """Writes the shapes that requests have."""
    text = ""
    for tensor in net.inputs:
        kind = {FLOAT: "FP32", INT64: "INT64", UINT8: "UINT8"}[tensor.type.tensor_type.elem_type]
        batch = tensor.type.tensor_type.shape.dim[0].dim_value or -1
        shape = [batch, *inputs[tensor.name][1]]
        text += f'[[input]]\nname = "{tensor.name}"\ndatatype = "{kind}"\nshape = {shape}\n'
    (folder / "model.toml").write_text(text)


def show(engine, rows):
    print(f"\n{engine:24} serves  alone   together  l(1) ms  busy ms  idle ms  ratio  note")
    for name, row in rows.items():
        if not row["serves"]:
            print(f"{name:24} NO      {row['why'][:150]}")
            continue
        ratio = row["shown_ms"] / row["busy_ms"]
        note = row["measured_at"] or ""
        note += f"  unbatched: {row['unbatched'][:60]}" if row["unbatched"] else ""
        print(
            f"{name:24} yes     {row['alone']:.0e}   {row['together']:.0e}     {row['shown_ms']:7.3f}"
            f"  {row['busy_ms']:7.3f}  {row['idle_ms']:7.3f}  {ratio:5.2f}  {note}"
        )
    served = [row for row in rows.values() if row["serves"]]
    equal = [row for row in served if max(row["alone"], row["together"]) <= TOLERANCE]
    # Below a tenth of a millisecond the time of a batch is that of threads which wake.
    timed = [row["shown_ms"] / row["busy_ms"] for row in served if row["busy_ms"] >= 0.1]
    near = [ratio for ratio in timed if 0.75 <= ratio <= 1.25]
    print(
        f"{engine}: {len(served)} of {len(rows)} serve at the first try, {len(equal)} equal to ONNX Runtime; "
        f"l(1) within 25 % for {len(near)} of {len(timed)} that take 0.1 ms or more"
    )
    return len(served), len(equal)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--engine", choices=["cpu", "onnxruntime", "auto"], action="append")
    arguments.add_argument("--only", action="append", help="a model's name; may be repeated")
    arguments.add_argument("--least", type=int, default=0, help="models that must serve on each engine")
    arguments.add_argument("--declare", action="store_true", help="write the shapes of the requests into a model.toml each")
    arguments.add_argument("--keep", type=pathlib.Path, help="a folder for the files")
    arguments.add_argument("--binary", type=pathlib.Path, default=BINARY)
    arguments.add_argument("--json", type=pathlib.Path, help="a file for the rows")
    given = arguments.parse_args()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or pathlib.Path(scratch)
        models = {}
        for name in given.only or ALL:
            net, inputs = ALL[name]()
            net.save(folder / name / "1")
            if given.declare:
                declare(folder / name, net, inputs)
            models[name] = onnxruntime.InferenceSession(str(folder / name / "1" / "model.onnx"), options), inputs
        results = {engine: tried(engine, folder, models, given.binary) for engine in given.engine or ["onnxruntime", "cpu"]}
    counts = [show(engine, rows) for engine, rows in results.items()]
    if given.json:
        given.json.write_text(json.dumps(results, indent=1))
    return 0 if all(served == equal and served >= given.least for served, equal in counts) else 1


if __name__ == "__main__":
    sys.exit(main())
