"""What the comparison of served batches with single rows costs: latency and device time, with it and without it.

    python tests/python/measure_watch.py BINARY [--rates 1000,3000,5000] [--rounds 3] [--seconds 5]

BINARY is a release build of ripieno; onnx and onnxruntime come from the package index. The model is a row of matrix products behind an
operator that the analysis of the graph leaves open, so that served batches are sampled. Two servers on ONNX Runtime with one thread take
turns under the same Poisson load: one compares, and one has batching = "trust" and does not. Each line gives the medians over the rounds:
p50 and p99 of both, the rows that were compared, and the part of the device's time that they took alone, by the profile of one row.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import urllib.request

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from serving import Server, counted

WIDTH, LAYERS, SLO_MS = 512, 6, 60


def save(path):
    """Layers of products, and a sequence of one tensor between them, through which the analysis cannot see."""
    draw = np.random.default_rng(1)
    nodes, at = [], "x"
    for layer in range(LAYERS):
        nodes += [helper.make_node("MatMul", [at, f"w{layer}"], [f"p{layer}"]), helper.make_node("Tanh", [f"p{layer}"], [f"h{layer}"])]
        at = f"h{layer}"
    nodes += [helper.make_node("SequenceConstruct", [at], ["s"]), helper.make_node("SequenceAt", ["s", "zero"], ["y"])]
    weights = [draw.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5 for _ in range(LAYERS)]
    constants = [numpy_helper.from_array(weight, f"w{layer}") for layer, weight in enumerate(weights)]
    constants.append(numpy_helper.from_array(np.int64(0), "zero"))
    tensor = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH])
    graph = helper.make_graph(nodes, "layers", [tensor("x")], [tensor("y")], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)


def serve(binary, folder, name, more):
    model = folder / name / name
    (model / "1").mkdir(parents=True)
    save(model / "1" / "model.onnx")
    (model / "model.toml").write_text(f"slo_ms = {SLO_MS}\nmax_batch = 32\n{more}")
    return Server(folder / name, "--threads", "1", "--engine", "onnxruntime", binary=binary)


def bench(binary, server, name, rate, seconds, seed):
    command = [binary, "bench", server.http, "--model", name, "--rate", str(rate), "--duration", str(seconds), "--warmup", "1"]
    out = subprocess.run([*command, "--seed", str(seed), "--format", "json"], check=True, capture_output=True, timeout=300).stdout
    found = json.loads(out)
    return found["p50_ms"], found["p99_ms"]


def one_row_ms(server, name):
    """What a batch of one row takes, by the profile."""
    with urllib.request.urlopen(f"http://{server.http}/v2/models/{name}/stats", timeout=60) as reply:
        stats = json.loads(reply.read())["model_stats"][0]
    row = next(batch for batch in stats["batch_stats"] if batch["batch_size"] == 1)["compute_infer"]
    return row["ns"] / row["count"] / 1e6


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("binary")
    arguments.add_argument("--rates", default="1000,3000,5000")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--seconds", type=float, default=5)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        with (
            serve(options.binary, folder, "compared", "") as compared,
            serve(options.binary, folder, "trusted", 'batching = "trust"\n') as trusted,
        ):
            servers = [("compared", compared), ("trusted", trusted)]
            print("  rate   p50 ms: compared, not   p99 ms: compared, not   rows compared   device time %")
            for rate in map(float, options.rates.split(",")):
                seen = {name: [] for name, _ in servers}
                before = counted(compared.scrape(), "ripieno_rows_compared_total")
                for turn in range(options.rounds):
                    for name, server in servers[:: -1 if turn % 2 else 1]:
                        seen[name].append(bench(options.binary, server, name, rate, options.seconds, turn))
                rows = counted(compared.scrape(), "ripieno_rows_compared_total") - before
                share = rows * one_row_ms(compared, "compared") / (10 * (options.seconds + 1) * options.rounds)
                p50, p99 = ([statistics.median(run[at] for run in seen[name]) for name, _ in servers] for at in (0, 1))
                print(f"{rate:6.0f}   {p50[0]:16.2f}, {p50[1]:.2f}   {p99[0]:16.2f}, {p99[1]:.2f}   {rows:13.0f}   {share:13.3f}", flush=True)


if __name__ == "__main__":
    main()
