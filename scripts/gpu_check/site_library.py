"""ONNX Runtime as Python sees it: its library, its providers, and its own times without a server."""

import json
import pathlib
import statistics
import time

import numpy as np
import onnxruntime
from built import feed


def library():
    """The shared library of the package."""
    folder = pathlib.Path(onnxruntime.__file__).parent / "capi"
    return next(path for path in sorted(folder.glob("libonnxruntime.*")) if "providers" not in path.name)


def session(path, device, profile=None):
    """A session on the device alone; an error if its provider is missing."""
    options = onnxruntime.SessionOptions()
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    if device == "cpu":
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    settings = {"device_id": int(device.partition(":")[2].partition(",")[0])}
    made = onnxruntime.InferenceSession(str(path), options, providers=[("CUDAExecutionProvider", settings)])
    if made.get_providers()[0] != "CUDAExecutionProvider":
        raise RuntimeError(f"ONNX Runtime's Python package has no CUDA here: {made.get_providers()}")
    return made


def run_ms(made, inputs, rows, runs):
    """The median time of a batch, from NumPy to NumPy, after two runs that do not count."""
    tensors, taken = feed(inputs, rows), []
    for run in range(runs + 2):
        begun = time.perf_counter()
        made.run(None, tensors)
        if run >= 2:
            taken.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(taken)


def launch_gaps(path, inputs, device, rows, folder, runs=5):
    """How much of a batch the library spends outside of its operators, by its own profile.

    Operators on a GPU are counted with the time in which the processor starts them, not that in which they compute.
    """
    made = session(path, device, folder / f"profile-{path.parts[-3]}-{rows}")
    for _ in range(runs + 2):
        made.run(None, feed(inputs, rows))
    events = json.loads(pathlib.Path(made.end_profiling()).read_text())
    whole = [event for event in events if event.get("name") == "model_run"][2:]
    inside = lambda run, event: run["ts"] <= event["ts"] and event["ts"] + event["dur"] <= run["ts"] + run["dur"]
    kernels = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
    spent = [sum(event["dur"] for event in kernels if inside(run, event)) for run in whole]
    run_us, kernel_us = (float(np.median(values)) for values in ([run["dur"] for run in whole], spent))
    providers = {event["args"].get("provider", "?") for event in kernels}
    return {
        "rows": rows, "operators": len(kernels) // max(1, len(whole) + 2), "run_ms": run_us / 1e3,
        "operators_ms": kernel_us / 1e3, "gap_percent": 100 * (1 - kernel_us / run_us), "providers": sorted(providers),
    }  # fmt: skip
