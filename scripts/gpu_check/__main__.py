"""Checks Ripieno on an NVIDIA GPU, and measures it there, in eight minutes and without a network.

    gpu-check --wheels WHEELS                  on the machine with the GPU
    gpu-check --pack gpu-check.tar.gz          on the machine where Ripieno was built: all that the other one needs

1. equality   every demo and test model answers as on the processor
2. latency    of a ResNet-50 and a BERT-base of random weights, by batch size
3. goodput    within an SLO: the default policy, eager, and timeout with several windows
4. overlap    rows a second at saturation beside ONNX Runtime in a loop: the next batch is gathered while one computes
5. gaps       how much of a batch ONNX Runtime spends outside of its operators
6. cells      walks as on the processor; an LSTM of 1,024: a step, sequences/s, latencies. Needs no ONNX Runtime: --only cells

Prints tables and writes one JSON file. Exit code 1 if an answer differs, a model fails, or a part could not run.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time

import bundle

SECTIONS = ["equality", "latency", "goodput", "overlap", "gaps", "cells"]
# Those that need no models of random weights.
ALONE = {"equality", "cells"}


def arguments():
    parser = argparse.ArgumentParser("gpu-check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=bundle.find_binary(), help="the ripieno program")
    parser.add_argument("--wheels", type=pathlib.Path, help="folder of Python wheels; without it this Python's own packages")
    parser.add_argument("--device", default="cuda:0", help="cuda:0, or cpu to try the check itself")
    parser.add_argument("--quick", action="store_true", help="small models and short runs, which measure nothing of worth")
    parser.add_argument("--minutes", type=float, default=8.0, help="what does not fit is left out, and said to be")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="a part; may be repeated")
    parser.add_argument("--json", type=pathlib.Path, default=pathlib.Path("gpu-check.json"), help="file for the figures")
    parser.add_argument("--pack", type=pathlib.Path, metavar="FILE", help="write the bundle, and check nothing")
    return parser.parse_args()


def load_modules():
    """Makes the repository's test modules importable; the program of tests/models by the name as_they_come."""
    sys.path[1:1] = [str(bundle.ROOT / "tests/models"), str(bundle.ROOT / "tests/python")]
    spec = importlib.util.spec_from_file_location("as_they_come", bundle.ROOT / "tests/models/__main__.py")
    sys.modules["as_they_come"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["as_they_come"])


def output_of(*command):
    """The first line that a program prints, if there is such a program."""
    if not shutil.which(command[0]):
        return None
    done = subprocess.run(command, capture_output=True, text=True)
    return (done.stdout.splitlines() or [None])[0] if done.returncode == 0 else None


def cell(value):
    if isinstance(value, float):
        return f"{value:.0e}" if 0 < abs(value) < 1e-3 else f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)[:110]


def show(title, rows):
    columns = list(dict.fromkeys(key for row in rows for key in row))
    columns = [key for key in columns if any(row.get(key) not in ("", None) for row in rows)]
    lines = [columns] + [[cell(row.get(key)) for key in columns] for row in rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    print(f"\n{title}")
    for line in lines:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    sys.stdout.flush()


def run_sections(check, wanted):
    """The rows of each part; a part that fails is a row with its error."""
    import built
    import cells
    import sections

    largest = 8 if check.quick else 64
    found, models = {}, built.models(check.quick) if set(wanted) - ALONE else {}
    # The later parts need the latencies.
    order = [name for name in SECTIONS if name in wanted or name == "latency" and set(wanted) - ALONE]
    for name in order:
        began = time.monotonic()
        needs = [] if name in ALONE else [models, largest]
        needs += [found["latency"]] if name in {"goodput", "overlap"} else []
        try:
            rows = cells.cells(check) if name == "cells" else getattr(sections, name)(check, *needs)
        except Exception as cause:
            rows = [{"error": f"{type(cause).__name__}: {' '.join(str(cause).split())}"}]
        found[name] = rows
        # Rows of different parts have different columns.
        parts = dict.fromkeys(row.get("part", "") for row in rows)
        for part in parts:
            own = [row for row in rows if row.get("part", "") == part]
            show(f"{name} {part} ({time.monotonic() - began:.0f} s)", own)
    return found


def main():
    given = arguments()
    if not given.binary.is_file():
        raise SystemExit(f"gpu-check: there is no program {given.binary}; name it with --binary")
    if given.pack:
        bundle.pack(given.binary, given.pack)
        return 0
    if given.wheels and "GPU_CHECK_SITE" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            bundle.unpack_wheels(given.wheels, pathlib.Path(folder))
            return bundle.restart_with(folder)
    try:
        load_modules()
        import sections
    except ImportError as cause:
        raise SystemExit(f"gpu-check: {cause}; name the folder of wheels with --wheels, as docs/guide/gpu.md says") from None
    began = time.monotonic()
    # GPUs are numbered here as by nvidia-smi.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    with tempfile.TemporaryDirectory() as folder:
        wanted = given.only or SECTIONS
        library = sections.library() if set(wanted) != {"cells"} else None
        check = sections.Check(given.binary.resolve(), given.device, given.quick, given.minutes, pathlib.Path(folder), library)
        if library:
            os.environ["ORT_DYLIB_PATH"] = str(library)
        about = {
            "device": given.device, "gpu": output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
            "ripieno": output_of(str(check.binary), "--version"), "onnxruntime": library.name if library else None,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores", "quick": given.quick,
        }  # fmt: skip
        print("; ".join(f"{key} {value}" for key, value in about.items()))
        found = run_sections(check, wanted)
    errors = [row for rows in found.values() for row in rows if row.get("error")]
    unequal = [row for name in ALONE for row in found.get(name, []) if row.get("equal") is False]
    seconds = time.monotonic() - began
    given.json.write_text(json.dumps({**about, "seconds": seconds, "errors": len(errors), "sections": found}, indent=1) + "\n")
    print(f"\n{len(unequal)} models differ or fail, {len(errors)} rows have errors; {seconds:.0f} s; figures in {given.json}")
    if given.quick or given.device == "cpu":
        print("this run tried the check itself: its times say nothing about a GPU")
    return 1 if errors or unequal else 0


if __name__ == "__main__":
    sys.exit(main())
