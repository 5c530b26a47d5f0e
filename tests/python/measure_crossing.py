"""What a process of its own costs a batch: the time by which crossing to it and back lengthens a batch, by payload.

    python tests/python/measure_crossing.py BINARY [--rounds 5]

BINARY is a release build of ripieno. One model gives its input back, one answers with a number a row, so that the input crosses alone.
Each is measured by `ripieno profile` in the server's process and in one of its own, in turn; the medians of the rounds are compared.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

from onnx import TensorProto, helper

import repositories
from serving import onnxruntime_library

PAYLOADS = {"4 kB": 1_000, "0.6 MB": 150_528, "5 MB": 1_250_000}
KEYS = "max_batch = 1\nslo_ms = 1000\n"


def models(width):
    shapes = [("x", TensorProto.FLOAT, ["batch", width])]
    back = repositories.graph([helper.make_node("Identity", ["x"], ["y"])], shapes, [("y", TensorProto.FLOAT, ["batch", width])])
    most = helper.make_node("ReduceMax", ["x"], ["y"], axes=[1], keepdims=1)
    return {"back": back, "in": repositories.graph([most], shapes, [("y", TensorProto.FLOAT, ["batch", 1])])}


def profiled(binary, folder):
    """The latency of one row of each model, in milliseconds."""
    command = [str(binary), "profile", str(folder), "--engine", "onnxruntime", "--threads", "1", "--format", "json"]
    environment = {**os.environ, "ORT_DYLIB_PATH": os.environ.get("ORT_DYLIB_PATH") or onnxruntime_library()}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return {report["name"]: report["profile"]["latency_ms"][0] for report in json.loads(done.stdout)["models"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for payload, width in PAYLOADS.items():
            for way, model in models(width).items():
                for isolation in ("none", "process"):
                    name = f"{payload.replace(' ', '')}-{way}-{isolation}"
                    repositories.write(folder, name, model, f'{KEYS}isolation = "{isolation}"\n')
        rounds = [profiled(given.binary.resolve(), folder) for _ in range(given.rounds)]
    for payload in PAYLOADS:
        for way, words in (("in", "in"), ("back", "in and out")):
            name = f"{payload.replace(' ', '')}-{way}"
            sides = {side: [found[f"{name}-{side}"] for found in rounds] for side in ("none", "process")}
            own, apart = (statistics.median(sides[side]) for side in ("none", "process"))
            least, most = (pick(b - a for a, b in zip(sides["none"], sides["process"])) for pick in (min, max))
            print(f"{payload:>7} {words:10}  {own:7.3f} ms  own process {apart:7.3f} ms  crossing {apart - own:7.3f} ({least:.3f} to {most:.3f})")


if __name__ == "__main__":
    main()
