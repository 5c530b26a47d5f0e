"""The repositories that the check serves: demo and test models for their answers, built models for their speed."""

import json
import re
import shutil

from bundle import ROOT

# The answers are compared here, so differences that the server would refuse are let through and shown.
LENIENT = "gpu_tolerance = 1.0\nwarm_up = 1\n"
PATIENT = "slo_ms = 60000\n"
COSTS = "alpha_ms = 1\nbeta_ms = 1\n"
DEMOS = ["arithmetic", "dates", "digits", "sentiment", "shapes", "shapes-exits"]
DEMOS_IN_CELLS = ["arithmetic", "dates", "sentiment"]
QUICK_DEMOS = ["digits", "sentiment", "shapes-exits"]
QUICK_TESTS = ["lenet", "text_cnn", "quantised"]
DATATYPES = {"float32": "FP32", "int64": "INT64", "uint8": "UINT8"}
REQUESTS = 8


def demo_models(folder, quick, names=None):
    """Copies the demo models, with costs that are given instead of measured. Returns the requests of each."""
    requests = {}
    for name in names or (QUICK_DEMOS if quick else DEMOS):
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
    text = json.loads((ROOT / "models/samples" / f"{name.removesuffix('-exits')}.json").read_text())

    def inputs(row):
        if "inputs" in row:
            return row["inputs"]
        pixels = [number * text["scale"] for number in row["data"]]
        return [{"name": text["input"], "datatype": "FP32", "shape": [1, *text["shape"]], "data": pixels}]

    return [inputs(row) for row in text["rows"][:REQUESTS]]


def test_models(folder, quick):
    """Writes the models of tests/models, in the server's own process. Returns the requests of each."""
    from architectures import ALL, request

    def inputs(tensors):
        return [
            {"name": name, "datatype": DATATYPES[array.dtype.name], "shape": list(array.shape), "data": array.ravel().tolist()}
            for name, array in tensors.items()
        ]

    requests = {}
    for name in QUICK_TESTS if quick else sorted(ALL):
        net, kinds = ALL[name]()
        net.save(folder / name / "1")
        (folder / name / "model.toml").write_text(f'{LENIENT}{PATIENT}{COSTS}max_batch = 8\nisolation = "none"\n')
        requests[name] = [inputs(request(kinds, seed, list(kinds))) for seed in range(REQUESTS)]
    return requests


def built_settings(largest):
    """Settings of a built model, whose batches have up to so many rows."""
    return f"slo_ms = 1000\nbatch_sizes = {[1 << at for at in range(largest.bit_length())]}\ngpu_tolerance = 1.0\n"


def write_built(folder, built, largest):
    """Writes the built models."""
    for name, (net, _) in built.items():
        net.save(folder / name / "1")
        (folder / name / "model.toml").write_text(built_settings(largest))


def set_slo(folder, name, slo_ms):
    """Gives a model an SLO."""
    file = folder / name / "model.toml"
    file.write_text(re.sub(r"(?m)^slo_ms = .*$", f"slo_ms = {slo_ms}", file.read_text()))


def allow_cpu_nodes(folder, name):
    """Lets operators that the GPU cannot run go to the processor."""
    file = folder / name / "model.toml"
    file.write_text("allow_cpu_nodes = true\n" + file.read_text())
