"""`scripts/gpu-check` on the processor: the program that measures on a GPU, with small models."""

import json
import os
import subprocess
import sys
import tarfile

import pytest

from serving import BINARY, ROOT

QUICK = ["--device", "cpu", "--quick"]


def check(*arguments, root=ROOT, folder=None):
    command = [str(root / "scripts/gpu-check"), *map(str, arguments)]
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder, env=environment)


def test_a_quick_run_fills_every_table(tmp_path):
    file = tmp_path / "figures.json"
    done = check(*QUICK, "--binary", BINARY, "--json", file)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    parts = found["sections"]
    assert list(parts) == ["equality", "latency", "goodput", "overlap", "gaps", "cells"] and found["errors"] == 0
    assert len(parts["equality"]) == 6 and all(row["equal"] for row in parts["equality"])
    sizes = [row["rows"] for row in parts["latency"] if row["model"] == "resnet-small"]
    assert sizes == [1, 2, 4, 8] and all(row["ms"] > 0 and row["onnxruntime_ms"] > 0 for row in parts["latency"])
    assert [row["policy"] for row in parts["goodput"]] == ["default", "eager", "timeout 0.2 SLO"]
    # On a slow machine no rate may be good: then it is 0, with no percentiles.
    assert all(row["error"] == "" and (row["goodput_rps"] > 0) == (row["p99_ms"] is not None) for row in parts["goodput"])
    assert all(row["rows_per_s"] > 0 and 0 <= row["gathered_ahead"] <= 1 for row in parts["overlap"])
    assert all(0 < row["operators_ms"] <= row["run_ms"] for row in parts["gaps"])
    walks = [row for row in parts["cells"] if row["part"] == "equality"]
    assert len(walks) == 3 and all(row["equal"] for row in walks)
    assert {row["part"] for row in parts["cells"]} == {"equality", "step", "served", "wire"}
    served = [(row["model"], row["policy"]) for row in parts["cells"] if row["part"] == "served"]
    of_cells = [(name, policy) for name in ("lstm-tf32", "lstm-tf32-process") for policy in ("unified", "cellular")]
    assert served == [*of_cells, ("lstm-whole", "bucketed")]
    assert "say nothing about a GPU" in done.stdout


def test_what_has_no_time_is_said_and_is_a_failure(tmp_path):
    done = check(*QUICK, "--minutes", 0, "--binary", BINARY, "--json", tmp_path / "figures.json")
    assert done.returncode == 1 and done.stdout.count("not measured: ") >= 6, done.stdout + done.stderr


def test_a_bundle_holds_all_that_it_needs(tmp_path):
    file = tmp_path / "bundle.tar.gz"
    packed = check("--pack", file, "--binary", BINARY)
    assert packed.returncode == 0 and file.stat().st_size < 60 << 20, packed.stdout + packed.stderr
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path, filter="data")
    done = check(*QUICK, "--only", "equality", root=tmp_path / "gpu-check", folder=tmp_path)
    assert done.returncode == 0 and (tmp_path / "gpu-check.json").is_file(), done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--binary", "none"], "there is no program none; name it with --binary"),
        (["--binary", BINARY, "--wheels", "."], "holds no wheels"),
        (["--binary", BINARY, "--device", "cuda:0", "--quick", "--only", "latency"], "cannot run models on cuda:0"),
    ],
)
def test_what_is_missing_is_named(arguments, expected, tmp_path):
    done = check(*arguments, folder=tmp_path)
    assert done.returncode != 0 and expected in done.stdout + done.stderr, done.stdout + done.stderr


def test_answers_that_differ_are_found():
    code = """
import sys
import numpy as np
sys.path[:0] = sys.argv[1:]
import importlib.util, pathlib
spec = importlib.util.spec_from_file_location("program", pathlib.Path(sys.argv[1]) / "__main__.py")
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)
program.load_modules()
import sections
answer = lambda *numbers: [{"y": np.array(numbers, np.float32)}]
row = lambda found: sections.compared("m", (answer(1, 2), answer(1, 2)), found, False)
near, far, none, nan = answer(1, 2.001), answer(1, 2.1), [{}], answer(float("nan"), 2)
print([row((near, near))["equal"], row((near, far))["equal"], row((far, near))["equal"], row((nan, nan))["equal"], row((near, none))["error"][:9], row("no")["error"]])
"""
    done = subprocess.run([sys.executable, "-c", code, str(ROOT / "scripts/gpu_check")], capture_output=True, text=True)
    assert done.stdout.strip() == "[True, False, False, False, 'an answer', 'no']", done.stdout + done.stderr
