"""Makes the three small recordings of live overload that `crates/cli/tests/suite/recordings.rs` replays.

    python tests/python/make_recordings.py BINARY FOLDER [--seconds S]

BINARY is a release build of ripieno. Each model has random weights and runs on one thread of ONNX Runtime, beside the load
generator on the same machine: `whole` is a stack of dense layers, `padded` an encoder whose requests differ in length, `cells`
an LSTM. The offered rate is 1.1 times the goodput that a search finds, or --rate, so that a part of the requests has to be
refused. The kept recording of `whole` is of --rate 1300 --busy 2: while other programs shared the cores, the batches that
carried the load by the profile did not carry it, and 880 of 1,300/s were answered in time where the paper's rule has 1,142.
"""

import argparse
import contextlib
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from serving import ROOT, Server

WIDTH, LAYERS = 1024, 12
ENCODER_WIDTH, ENCODER_LAYERS, LONGEST = 256, 4, 128
SLO_MS = 100
OVERLOAD = 1.1


def graph(inputs, outputs, nodes, weights):
    made = helper.make_graph(nodes, "model", inputs, outputs, weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def dense(random, count, width, shape):
    """Dense layers of one width over the last dimension of `x`."""
    nodes, weights, at = [], [], "x"
    for layer in range(count):
        matrix = (random.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32)
        weights.append(numpy_helper.from_array(matrix, f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [at, f"w{layer}"], [f"m{layer}"]))
        at = "y" if layer == count - 1 else f"r{layer}"
        nodes.append(helper.make_node("Tanh", [f"m{layer}"], [at]))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    return graph(values[:1], values[1:], nodes, weights)


def save(folder, model, toml):
    (folder / "1").mkdir(parents=True)
    onnx.save(model, folder / "1" / "model.onnx")
    (folder / "model.toml").write_text(toml)


def write_models(folder):
    """One repository for each kind; what the load generator needs to know of it."""
    random = np.random.default_rng(1)
    whole = dense(random, LAYERS, WIDTH, ["batch", WIDTH])
    save(folder / "whole" / "whole", whole, f"slo_ms = {SLO_MS}\n")
    padded = dense(random, ENCODER_LAYERS, ENCODER_WIDTH, ["batch", "length", ENCODER_WIDTH])
    toml = f'slo_ms = {SLO_MS}\nmax_length = {LONGEST}\n[[input]]\nname = "x"\nlength_dim = 1\n'
    save(folder / "padded" / "padded", padded, toml + '[[output]]\nname = "y"\nlength_dim = 1\n')
    cells = [sys.executable, ROOT / "clients/python/random_cells.py", folder / "cells", "--hidden", "256", "--inputs", "256", "--slo-ms", str(SLO_MS)]
    subprocess.run(cells, check=True, stdout=subprocess.DEVNULL)
    return {"whole": ("whole", []), "padded": ("padded", ["--lengths", f"3,0.7,1,{LONGEST}"]), "cells": ("lstm", ["--lengths", "24"])}


@contextlib.contextmanager
def busy(count):
    """Keeps cores busy, as other programs do: the engine was profiled without them."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def bench(binary, server, model, more):
    command = [binary, "bench", server.http, "--model", model, "--slo-ms", str(SLO_MS), "--format", "json", *more]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", help="one of whole, padded, cells")
    parser.add_argument("--busy", type=int, default=0, help="processes that keep a core busy beside the recorded load")
    parser.add_argument("--rate", type=float, help="requests a second, instead of searching for them")
    given = parser.parse_args()
    binary, flags = given.binary.resolve(), ["--engine", "onnxruntime", "--threads", "1"]
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for kind, (model, load) in write_models(folder).items():
            if given.only not in (None, kind):
                continue
            rate = given.rate
            if rate is None:
                with Server(folder / kind, *flags, binary=binary) as server:
                    found = bench(binary, server, model, ["--find-goodput", "--duration", "2", *load])
                rate = OVERLOAD * found["goodput_rps"]
            record = folder / f"{kind}.jsonl"
            with Server(folder / kind, *flags, "--record", str(record), binary=binary) as server:
                with busy(given.busy):
                    more = ["--rate", str(rate), "--duration", str(given.seconds), "--warmup", "0.5"]
                    bench(binary, server, model, [*more, *load])
            kept = given.folder / f"{kind}.jsonl.gz"
            kept.write_bytes(gzip.compress(record.read_bytes(), mtime=0))
            print(f"{kind}: {rate:.0f} requests/s for {given.seconds} s, {kept.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
