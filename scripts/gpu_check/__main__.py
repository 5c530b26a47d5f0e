"""Checks Ripieno on an NVIDIA GPU, and measures it there, without a network.

    gpu-check --pack gpu-check.tar.gz          where Ripieno was built: all that the other machine needs
    gpu-check --wheels WHEELS                  beside the GPU, the first command: the head of every section in 8 minutes
    gpu-check --only cells                     the same without ONNX Runtime, wheels or any Python package, from the bundle

1. equality   every demo and test model answers as on the processor
2. latency    of a ResNet-50 and a BERT-base of random weights, by batch size; the sizes that a model gets by itself
3. goodput    within an SLO: the default policy, eager, and timeout with several windows
4. overlap    rows a second at saturation and at 9,000/s beside ONNX Runtime in a loop; two lanes beside one
5. gaps       how much of a batch ONNX Runtime spends outside of its operators
6. cells      walks as on the processor; the time of a signal; an LSTM of 1,024: a step, sequences/s, latencies

Each section has a share of the minutes, and what it leaves goes to the next ones. The most important rows come first; what does
not fit is left out, and said to be. Tables are printed after each section. The JSON file is written after each row, so a run that
is killed leaves all rows that it had. Exit code 1 if an answer differs, a model fails, or a part could not run.
"""

import argparse
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import bundle

# Shares of the time, by section.
SHARES = {"equality": 22, "latency": 12, "goodput": 18, "overlap": 18, "gaps": 4, "cells": 26}
# It needs no ONNX Runtime.
ALONE = "cells"


def arguments():
    parser = argparse.ArgumentParser("gpu-check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=bundle.find_binary(), help="the ripieno program")
    parser.add_argument("--wheels", type=pathlib.Path, help="folder of Python wheels; without it this Python's own packages")
    parser.add_argument("--device", default="cuda:0", help="cuda:0, or cpu to try the check itself")
    parser.add_argument("--quick", action="store_true", help="small models and short runs, which measure nothing of worth")
    parser.add_argument("--minutes", type=float, default=8.0, help="time of the whole run, unpacking of wheels included (8)")
    parser.add_argument("--only", choices=list(SHARES), action="append", help="a section; may be repeated")
    parser.add_argument("--json", type=pathlib.Path, default=pathlib.Path("gpu-check.json"), help="file for the figures")
    parser.add_argument("--pack", type=pathlib.Path, metavar="FILE", help="write the bundle, and check nothing")
    return parser.parse_args()


def output_of(*command):
    """The first line that a program prints, if there is such a program and it ends soon."""
    if not shutil.which(command[0]):
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        return None
    return (done.stdout.splitlines() or [None])[0] if done.returncode == 0 else None


def library_for(device, wanted):
    """The library of ONNX Runtime. Where only cells are measured, it may be missing, or have no CUDA."""
    try:
        import site_library
    except ImportError as cause:
        if wanted == [ALONE]:
            return None
        sys.exit(f"gpu-check: {cause}; name the folder of wheels with --wheels, as docs/guide/gpu.md says, or ask for --only cells")
    library = site_library.library()
    with_cuda = device == "cpu" or (library.parent / "libonnxruntime_providers_cuda.so").is_file()
    return library if with_cuda or wanted != [ALONE] else None


def run_sections(check, wanted):
    """Runs each section within its share of the time that is left."""
    import cells
    import sections

    for at, name in enumerate(wanted):
        share = SHARES[name] / sum(SHARES[later] for later in wanted[at:])
        seconds = max(0.0, check.ends - time.monotonic()) * share
        check.begin(seconds)
        check.report.begin(name, seconds)
        with check.part():
            (cells.cells if name == ALONE else getattr(sections, name))(check)
        check.report.end()


def measure(given, began, folder):
    """Runs the check; returns its exit code."""
    from check import Check
    from report import Report

    wanted = [name for name in SHARES if name in (given.only or SHARES)]
    library = library_for(given.device, wanted)
    if library:
        os.environ["ORT_DYLIB_PATH"] = str(library)
    about = {
        "device": given.device, "gpu": output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
        "ripieno": output_of(str(given.binary.resolve()), "--version"), "onnxruntime": library.name if library else None,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores", "quick": given.quick, "minutes": given.minutes,
    }  # fmt: skip
    print("; ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    report = Report(given.json, about, began)
    check = Check(given.binary.resolve(), given.device, given.quick, folder, library, report, began + 60 * given.minutes)
    run_sections(check, wanted)
    report.write(complete=True)
    errors, unequal = report.errors(), report.unequal()
    seconds = time.monotonic() - began
    print(f"\n{len(unequal)} models differ or fail, {len(errors)} rows have errors; {seconds:.0f} s; figures in {given.json}")
    if given.quick or given.device == "cpu":
        print("this run tried the check itself: its times say nothing about a GPU")
    return 1 if errors or unequal else 0


def main():
    began = float(os.environ.get("GPU_CHECK_BEGAN") or time.monotonic())
    given = arguments()
    sys.path[1:1] = [str(bundle.ROOT / "tests/models"), str(bundle.ROOT / "tests/python")]
    if not given.binary.is_file():
        raise SystemExit(f"gpu-check: there is no program {given.binary}; name it with --binary")
    if given.pack:
        bundle.pack(given.binary, given.pack)
        return 0
    if given.wheels and "GPU_CHECK_SITE" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            bundle.unpack_wheels(given.wheels, pathlib.Path(folder))
            return bundle.restart(folder, began)
    os.environ.update(bundle.environment(os.environ.get("GPU_CHECK_SITE")))
    # Ends the servers that run, and the rows are in the file.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # GPUs are numbered here as by nvidia-smi.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    with tempfile.TemporaryDirectory() as folder:
        return measure(given, began, pathlib.Path(folder))


if __name__ == "__main__":
    sys.exit(main())
