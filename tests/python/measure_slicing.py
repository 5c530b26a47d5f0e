"""What slicing costs on full-size models: time and memory of the blocks beside the whole, as a table for docs/guide/slicing.md.

    python tests/python/measure_slicing.py [--engine onnxruntime] [MODEL ...]

Takes a few minutes a model; every comparison runs both sides in turn, on one thread of the built-in engine or of ONNX Runtime (found
by $ORT_DYLIB_PATH), whose memory is not compared.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile

import onnx

import slice_models
from serving import BINARY, Server

CUTS = {"2": ["--stages", "2"], "4": ["--stages", "4"], "8": ["--stages", "8"], "layers": ["--per-node"]}


def cut(file, folder, flags, engine):
    flags = [*flags, "--engine", engine, "--check", "--runs", "7", "--threads", "1", "--format", "json"]
    run = subprocess.run([str(BINARY), "slice", str(file), "-o", str(folder), *flags], capture_output=True, check=False)
    assert run.returncode == 0, run.stderr.decode()
    return json.loads(run.stdout)


def memory(folder, toml):
    """Resident memory of a server with this one model, loaded and run with single rows."""
    (folder / "model.toml").write_text("max_batch = 1\nslo_ms = 60000\n" + toml)
    with Server(folder, "--threads", "1") as server:
        return server.resident_mib()


def whole_folder(folder, model):
    (folder / "1").mkdir(parents=True)
    onnx.save(model, folder / "1" / "model.onnx")
    return folder


def measure(name, model, folder, nothing, engine):
    file = whole_folder(folder / "whole", model) / "1" / "model.onnx"
    one = memory(folder / "whole", "") - nothing if nothing else None
    for how, flags in CUTS.items():
        told = cut(file, folder / how, flags, engine)
        times = {line["rows"]: line["ratio"] for line in told["comparisons"]}
        worst = max(line["difference"] for line in told["comparisons"])
        weights = sum(block["weight_bytes"] for block in told["blocks"]) / 1e6
        print(
            f"| {name} | {how} | {len(told['blocks'])} | {worst:.0e} | {times[1]:.2f} | {times[3]:.2f} | {times[8]:.2f} "
            f"| {weights:.1f} |",
            end="" if nothing else "\n",
            flush=True,
        )
        if nothing:
            of_blocks = memory(folder / how, (folder / how / "model.toml").read_text()) - nothing
            print(f" {one:.0f} | {of_blocks:.0f} | {of_blocks / one:.2f} |", flush=True)


def main():
    # Memory that was freed after loading goes back to the system, so that what is resident is what is held.
    os.environ.update(MALLOC_MMAP_THRESHOLD_="65536", MALLOC_TRIM_THRESHOLD_="65536")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="cpu", choices=["cpu", "onnxruntime"])
    parser.add_argument("models", nargs="*", default=list(slice_models.FULL))
    args = parser.parse_args()
    own = args.engine == "cpu"
    titles = ["model", "cut", "blocks", "difference", "time b=1", "b=3", "b=8", "weights MB"]
    titles += ["whole MiB", "blocks MiB", "memory"] if own else []
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        small = slice_models.recurrent(hidden=8, features=6)
        nothing = memory(whole_folder(folder / "nothing", small), "") if own else None
        for name in args.models:
            measure(name, slice_models.FULL[name](), folder / name, nothing, args.engine)


if __name__ == "__main__":
    main()
