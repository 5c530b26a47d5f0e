"""The repositories that the check serves: demo and test models for their answers, built models for their speed."""

import json
import re
import shutil

from architectures import ALL, request
from bundle import ROOT

# The answers are compared here, so differences that the server would refuse are let through and shown.
LENIENT = "gpu_tolerance = 1.0\nwarm_up = 1\n"
PATIENT = "slo_ms = 60000\n"
COSTS = "alpha_ms = 1\nbeta_ms = 1\n"
DEMOS = ["arithmetic", "dates", "digits", "sentiment", "shapes", "shapes-exits"]
QUICK_DEMOS = ["digits", "sentiment", "shapes-exits"]
QUICK_TESTS = ["lenet", "text_cnn", "quantised"]
REQUESTS = 8


def demo_models(folder, quick):
    """Copies the demo models, with costs that are given instead of measured. Returns the requests of each."""
    requests = {}
    for name in QUICK_DEMOS if quick else DEMOS:
        source = ROOT / "models/repository" / name
        shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns(".ripieno"))
        toml = re.sub(r"(?m)^(slo_ms|max_batch) = .*\n", "", (source / "model.toml").read_text())
        toml = re.sub(r"(?m)^\[\[block\]\]\n", f"[[block]]\n{COSTS}", toml)
        whole = "" if "[[block]]" in toml else COSTS
        (folder / name / "model.toml").write_text(f"{LENIENT}{PATIENT}max_batch = 8\n{whole}{toml}")
        requests[name] = samples(name)
    return requests


def samples(name):
    """Requests of a demo model, from its samples."""
    import numpy as np

    kinds = {"INT64": np.int64, "FP32": np.float32}
    file = ROOT / "models/samples" / f"{name.removesuffix('-exits')}.json"
    text = json.loads(file.read_text())

    def tensors(row):
        if "inputs" in row:
            return {part["name"]: np.reshape(np.array(part["data"], kinds[part["datatype"]]), part["shape"]) for part in row["inputs"]}
        pixels = np.array(row["data"], np.float32) * np.float32(text["scale"])
        return {text["input"]: pixels.reshape([1, *text["shape"]])}

    return [tensors(row) for row in text["rows"][:REQUESTS]]


def test_models(folder, quick):
    """Writes the models of tests/models, in the server's own process. Returns the requests of each."""
    requests = {}
    for name in QUICK_TESTS if quick else sorted(ALL):
        net, inputs = ALL[name]()
        net.save(folder / name / "1")
        (folder / name / "model.toml").write_text(f'{LENIENT}{PATIENT}{COSTS}max_batch = 8\nisolation = "none"\n')
        requests[name] = [request(inputs, seed, list(inputs)) for seed in range(REQUESTS)]
    return requests


def write_built(folder, built, largest, slos):
    """Writes the built models' settings, and their files where they are missing."""
    sizes = [1 << at for at in range(largest.bit_length())]
    for name, (net, _) in built.items():
        if not (folder / name / "1").exists():
            net.save(folder / name / "1")
        slo = slos.get(name, 1000)
        (folder / name / "model.toml").write_text(f"slo_ms = {slo}\nbatch_sizes = {sizes}\ngpu_tolerance = 1.0\n")


def allow_cpu_nodes(folder, name):
    """Lets operators that the GPU cannot run go to the processor."""
    file = folder / name / "model.toml"
    file.write_text("allow_cpu_nodes = true\n" + file.read_text())
