"""Cells on a GPU: whether walks answer as on the processor, what a step takes, and how many sequences a second are served.

Needs no ONNX Runtime: cells have an engine of their own. The LSTM has a state of 1,024, as in the papers, takes ids from a table
of 1,000, and sequences of English sentences' lengths with a mean of 24. Beside it, where ONNX Runtime is there: the same LSTM as
one operator over whole sequences (on a GPU cuDNN's), padded to buckets of 10 lengths.
"""

import subprocess

import net
import numpy as np
import repository
from serving import Server

HIDDEN, IDS = 1024, 1000
INT32 = net.onnx.TensorProto.INT32
SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
DEMOS = ["arithmetic", "dates", "sentiment"]
LENGTHS = ["--lengths", "europarl", "--vocabulary", IDS]
RATES = [5_000, 20_000]


def lstm(hidden):
    """An LSTM cell of random weights."""
    made = net.Net("lstm")
    made.input("token", net.INT64, "batch")
    states = [made.input(name, net.FLOAT, "batch", hidden) for name in ("h", "c")]
    x = made.op("Gather", made.weight(IDS, hidden, scale=1.0), "token", axis=0)
    gates = made.linear(made.op("Concat", x, states[0], axis=1), 2 * hidden, 4 * hidden)
    parts = made.op("Split", gates, made.const([hidden] * 4), outputs=4, axis=1)
    i, o, f = (made.op("Sigmoid", part) for part in parts[:3])
    new = made.op("Mul", i, made.op("Tanh", parts[3]))
    c_next = made.op("Add", made.op("Mul", f, states[1]), new)
    made.output(made.op("Mul", o, made.op("Tanh", c_next)), "h_next", net.FLOAT, "batch", hidden)
    made.output(c_next, "c_next", net.FLOAT, "batch", hidden)
    return made


def whole_lstm(hidden):
    """The same over a whole sequence, padded behind its end with zeros."""
    made = net.Net("lstm")
    tokens = made.input("token", net.INT64, "batch", "length")
    real = made.op("Cast", made.op("Greater", tokens, made.const(0)), to=INT32)
    # A sequence of zeros alone counts as one of a single token.
    lengths = made.op("Max", made.op("ReduceSum", real, made.const([1]), keepdims=0), made.const(1, np.int32))
    x = made.op("Transpose", made.op("Gather", made.weight(IDS, hidden, scale=1.0), tokens, axis=0), perm=[1, 0, 2])
    scale = 1 / np.sqrt(hidden)
    factors = [made.weight(1, 4 * hidden, hidden, scale=scale) for _ in range(2)]
    _, last = made.op("LSTM", x, *factors, made.weight(1, 8 * hidden, scale=0.1), lengths, outputs=2, hidden_size=hidden)
    made.output(made.op("Squeeze", last, made.const([0])), "h", net.FLOAT, "batch", hidden)
    return made


WHOLE = """slo_ms = 60000
max_length = 330
max_batch = {batch}
batching = "trust"
[[input]]
name = "token"
length_dim = 1
pad = 0
"""
SETTINGS = """walk = "repeat"
slo_ms = 60000
max_length = 330
max_batch = {batch}
precision = "{precision}"
[[block]]
name = "cell"
file = "model.onnx"
[block.inputs]
token = "request"
h = "previous.h_next"
c = "previous.c_next"
[[output]]
name = "h"
from = "cell.h_next"
take = "last"
"""


def write(folder, quick):
    """Writes the LSTM in each precision. Returns the names."""
    hidden, batch = (64, 16) if quick else (HIDDEN, 512)
    names = []
    for precision in ("fp32", "tf32", "fp16"):
        name = f"lstm-{precision}"
        lstm(hidden).save(folder / name / "1")
        (folder / name / "model.toml").write_text(SETTINGS.format(batch=batch, precision=precision))
        names.append(name)
    name = "lstm-tf32-process"
    lstm(hidden).save(folder / name / "1")
    (folder / name / "model.toml").write_text('isolation = "process"\n' + SETTINGS.format(batch=batch, precision="tf32"))
    return [*names, name]


def write_whole(folder, quick):
    """Writes the LSTM over whole sequences. Returns its name."""
    hidden, batch = (64, 16) if quick else (HIDDEN, 512)
    whole_lstm(hidden).save(folder / "lstm-whole" / "1")
    (folder / "lstm-whole" / "model.toml").write_text(WHOLE.format(batch=batch))
    return "lstm-whole"


def flags(check):
    return ["--device", check.device, "--engine", "auto" if check.device != "cpu" else "cpu"]


def cells(check):
    """The rows of all parts."""
    folder = check.folder / "cells"
    names = write(folder, check.quick)
    rows = equality(check) + steps(check, folder)
    for name in names[1::2] if check.quick else names:
        rows += served(check, folder, name, ["unified", "cellular"], flags(check))
    if check.library:
        whole = check.folder / "whole"
        rows += served(check, whole, write_whole(whole, check.quick), ["bucketed"], check.flags(check.device))
    return rows + wire(check, folder, names[1])


def equality(check):
    """Whether the demo models in cells answer as on the processor, alone and together."""
    import sections

    folder = check.folder / "walks"
    requests = {name: made for name, made in repository.demo_models(folder, False).items() if name in DEMOS}
    sides = []
    for device in ("cpu", check.device):
        engine = "auto" if device != "cpu" else "cpu"
        with Server(folder, "--device", device, "--engine", engine, binary=check.binary) as server:
            errors = {report["name"]: report["error"] for report in server.ready["models"] if report["error"]}
            sides.append({name: sections.ask_all(check, server, name, requests[name], errors) for name in requests})
    rows = [sections.compared(name, sides[0][name], sides[1][name], False) for name in requests]
    return [{"part": "equality", **row} for row in rows]


def steps(check, folder):
    """Microseconds of a step by batch size, with gathering and the way to the device's thread; and of the product alone."""
    if late := check.missing(40):
        return [{"part": "step", "error": late}]
    rows = []
    for report in check.ripieno("profile", folder, *flags(check))["models"]:
        row = {"part": "step", "model": report["name"], "error": report["error"] or ""}
        times = (report["blocks"] or [{}])[0].get("latency_ms") or []
        row |= {f"{size} us": round(1e3 * times[size - 1], 1) for size in SIZES if size <= len(times)}
        rows.append(row)
    return rows + products(check)


def products(check):
    """The product of a step alone, by PyTorch where it is installed."""
    try:
        import torch
    except ImportError:
        return []
    if check.device == "cpu" or not torch.cuda.is_available():
        return []
    rows = []
    for precision, kind in [("fp32", torch.float32), ("tf32", torch.float32), ("fp16", torch.float16)]:
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        factor = torch.randn(2 * HIDDEN, 4 * HIDDEN, device="cuda", dtype=kind)
        row = {"part": "product alone", "model": precision, "error": ""}
        for size in SIZES:
            x = torch.randn(size, 2 * HIDDEN, device="cuda", dtype=kind)
            [x @ factor for _ in range(20)]
            ends = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            ends[0].record()
            [x @ factor for _ in range(200)]
            ends[1].record()
            torch.cuda.synchronize()
            row[f"{size} us"] = round(1e3 * ends[0].elapsed_time(ends[1]) / 200, 1)
        rows.append(row)
    return rows


def served(check, folder, name, policies, engine):
    """Sequences a second at saturation, and latencies at two rates, by requests made within the server."""
    rows, seconds = [], 0.5 if check.quick else 3
    for rate in [None, *([] if check.quick else RATES)]:
        if late := check.missing(20):
            return [*rows, {"part": "served", "model": name, "error": late}]
        load = ["--rate", rate] if rate else ["--outstanding", 64 if check.quick else 2048]
        try:
            found = check.ripieno(
                "compare", "--live", folder, "--model", name, *(word for policy in policies for word in ("--policy", policy)),
                "--rounds", 1, "--seconds", seconds, *load, *LENGTHS, *engine,
            )  # fmt: skip
        except (RuntimeError, subprocess.TimeoutExpired) as cause:
            rows.append({"part": "served", "model": name, "error": " ".join(str(cause).split())})
            continue
        for result in found["results"]:
            task = {part: round(value, 1) for part, value in result["task"].items() if part.endswith("_us")}
            keys = ("policy", "answered_rps", "p50_ms", "p90_ms", "p99_ms", "rows_per_task", "tasks_per_s")
            rows.append({"part": "served", "model": name, "offered": rate, **{key: result[key] for key in keys}, **task, "error": ""})
    return rows


def wire(check, folder, name):
    """The same over gRPC and HTTP, from this machine."""
    rows, seconds = [], 1 if check.quick else 4
    with Server(folder, *flags(check), "--load-model", name, "--model-control-mode", "explicit", binary=check.binary) as server:
        for rate in [200] if check.quick else RATES:
            if late := check.missing(10):
                return [*rows, {"part": "wire", "model": name, "error": late}]
            try:
                found = check.ripieno("bench", f"grpc://{server.grpc}", "--model", name, "--rate", rate, "--duration", seconds, *LENGTHS)
                keys = ("achieved_rps", "p50_ms", "p90_ms", "p99_ms", "send_lag_p99_ms")
                rows.append({"part": "wire", "model": name, "offered": rate, **{key: found.get(key) for key in keys}, "error": ""})
            except (RuntimeError, subprocess.TimeoutExpired) as cause:
                rows.append({"part": "wire", "model": name, "offered": rate, "error": " ".join(str(cause).split())})
    return rows
