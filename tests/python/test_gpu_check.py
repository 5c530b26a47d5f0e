"""`scripts/gpu-check` on the processor: the program that measures on a GPU, with small models, or with a stand-in for `ripieno`."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile

import pytest

from serving import BINARY, ROOT

QUICK = ["--device", "cpu", "--quick"]
SECTIONS = ["equality", "latency", "goodput", "overlap", "gaps", "cells"]


def command(arguments, root=ROOT):
    return [str(root / "scripts/gpu-check"), *map(str, arguments)]


def check(*arguments, root=ROOT, folder=None, **variables):
    environment = {**os.environ, "PYTHON": sys.executable, **variables}
    return subprocess.run(command(arguments, root), capture_output=True, text=True, timeout=300, cwd=folder, env=environment)


def parts(rows):
    return list(dict.fromkeys(row["part"] for row in rows))


def test_a_quick_run_fills_every_table(tmp_path):
    file = tmp_path / "figures.json"
    done = check(*QUICK, "--binary", BINARY, "--json", file)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    rows = found["sections"]
    assert list(rows) == SECTIONS and found["errors"] == 0 and found["complete"]
    assert all(times["took_s"] > 0 for times in found["times"].values())
    # Each section has a share of the eight minutes, and what the others leave goes to the last.
    assert found["times"]["equality"]["had_s"] < 8 * 60 / 4 and found["times"]["cells"]["had_s"] > 8 * 60 / 3
    assert len(rows["equality"]) == 6 and all(row["equal"] for row in rows["equality"])
    sizes = [row["rows"] for row in rows["latency"] if row["model"] == "resnet-small"]
    *by_size, by_itself = rows["latency"]
    assert sizes == [1, 2, 4, 8] and all(row["ms"] > 0 and row["onnxruntime_ms"] > 0 for row in by_size)
    # On the processor a model that names no sizes has none; on a GPU they are those that pay.
    assert by_itself["part"] == "sizes by itself" and by_itself["batch_sizes"] is None and by_itself["32 ms"] > 0
    assert [row["policy"] for row in rows["goodput"]] == ["default", "eager", "timeout 0.2 SLO"]
    # On a slow machine no rate may be good: then it is 0, with no percentiles.
    assert all(row["error"] == "" and (row["goodput_rps"] > 0) == (row["p99_ms"] is not None) for row in rows["goodput"])
    assert parts(rows["overlap"]) == ["saturated", "too much", "lanes"]
    assert all(row["rows_per_s"] > 0 and row["of_library"] > 0 for row in rows["overlap"] if row["part"] != "lanes")
    lanes = [(row["lanes"], row["model"]) for row in rows["overlap"] if row["part"] == "lanes" and row["achieved_rps"] > 0]
    assert lanes == [(count, name) for count in (1, 2) for name in ("resnet-small", "bert-small")]
    assert all(0 < row["operators_ms"] <= row["run_ms"] for row in rows["gaps"])
    assert parts(rows["cells"]) == ["equality", "step", "signal", "served", "wire"]
    walks = [row for row in rows["cells"] if row["part"] == "equality"]
    assert len(walks) == 3 and all(row["equal"] for row in walks)
    signals = [row for row in rows["cells"] if row["part"] == "signal"]
    assert [row["model"] for row in signals] == 2 * ["tiny"] + 2 * ["tiny-product"] and all(row["us_a_step"] > 0 for row in signals)
    served = [(row["model"], row["policy"]) for row in rows["cells"] if row["part"] == "served"]
    both = lambda name: [(name, "unified"), (name, "cellular")]
    assert served == [*both("lstm-tf32"), ("lstm-whole", "bucketed"), *both("lstm-tf32-process")]
    assert "say nothing about a GPU" in done.stdout


def test_what_has_no_time_is_said_and_is_a_failure(tmp_path):
    file = tmp_path / "figures.json"
    done = check(*QUICK, "--minutes", 0, "--binary", BINARY, "--json", file)
    assert done.returncode == 1, done.stdout + done.stderr
    sections = json.loads(file.read_text())["sections"]
    assert list(sections) == SECTIONS and all("not measured: " in rows[0]["error"] for rows in sections.values())
    assert all(f"{name}: had 0 s, took " in done.stdout for name in SECTIONS)


def test_a_bundle_holds_all_that_it_needs_and_cells_need_no_package(tmp_path):
    file = tmp_path / "bundle.tar.gz"
    packed = check("--pack", file, "--binary", BINARY)
    assert packed.returncode == 0 and file.stat().st_size < 60 << 20, packed.stdout + packed.stderr
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path, filter="data")
    done = check(*QUICK, "--only", "equality", root=tmp_path / "gpu-check", folder=tmp_path)
    assert done.returncode == 0 and (tmp_path / "gpu-check.json").is_file(), done.stdout + done.stderr
    # A Python without NumPy, onnx or ONNX Runtime.
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    bare_run = {"PYTHON": str(bare), "PYTHONPATH": "", "ORT_DYLIB_PATH": ""}
    code = "import sys, pathlib; sys.exit(any((pathlib.Path(p) / 'numpy').exists() for p in sys.path if p))"
    assert subprocess.run([bare, "-c", code]).returncode == 0, "this Python has no bare form"
    done = check(*QUICK, "--only", "cells", root=tmp_path / "gpu-check", folder=tmp_path, **bare_run)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "gpu-check.json").read_text())["sections"]["cells"]
    assert parts(rows) == ["equality", "step", "signal", "served", "wire"]
    (whole,) = (row for row in rows if row.get("model") == "lstm-whole")
    assert "needs ONNX Runtime" in whole["note"]


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


# The beginning of a stand-in for `ripieno`: it notes each command, and has answers of the right form.
STAND_IN = """#!{python} -S
import json, os, pathlib, sys, time
here = pathlib.Path({here!r})
words = sys.argv[1:]
with (here / "commands").open("a") as file:
    file.write(json.dumps([os.environ.get("LD_LIBRARY_PATH", ""), *words]) + "\\n")
after = lambda flag: [words[at + 1] for at, word in enumerate(words) if word == flag]
NAMES = ["lstm-fp16", "lstm-tf32", "lstm-tf32-process", "tiny", "tiny-product"]
TASK = dict(scheduling_us=1, gather_us=1, scatter_us=1, compute_us=1)

def report(name, error=None):
    profile = dict(latency_ms=[float(rows) for rows in range(1, 9)])
    blocks = [dict(latency_ms=[0.01] * 16)]
    measured = dict(blocks=blocks, profile=profile, batch_sizes=[1, 2, 4, 8])
    return dict(name=name, error=error, **(measured if not error else dict(blocks=[], profile=None)))

def compared(policy, rate):
    keys = "answered_rps bad_rate violation_rate p50_ms p90_ms p99_ms rows_per_task tasks_per_s busy_fraction"
    made = dict.fromkeys(keys.split(), 1.0)
    return dict(made, policy=policy, offered_rps=rate, task=TASK, tasks_gathered_ahead_fraction=0.0)

def compare():
    rates = [float(rate) for rate in after("--rate")] or [None]
    print(json.dumps(dict(results=[compared(policy, rate) for rate in rates for policy in after("--policy")])))

def profile(refused=dict()):
    print(json.dumps(dict(models=[report(name, refused.get(name)) for name in NAMES])))
    sys.exit(1 if refused else 0)

if words[0] == "--version":
    print("stand-in")
    sys.exit()
"""


def stand_in(folder, body):
    """Writes a stand-in for `ripieno`. Returns it, and a function that returns the commands so far, LD_LIBRARY_PATH first."""
    program = folder / "ripieno"
    program.write_text(STAND_IN.format(python=sys.executable, here=str(folder)) + body)
    program.chmod(0o755)
    return program, lambda: [json.loads(line) for line in (folder / "commands").read_text().splitlines()]


def rows_of(file, section):
    return json.loads(file.read_text())["sections"][section]


def test_a_model_that_is_refused_is_a_row_and_the_others_are_measured(tmp_path):
    body = """
if words[0] == "profile":
    profile({"lstm-tf32": "differs by more than gpu_tolerance"})
if words[0] == "compare" and "lstm-whole" in words:
    sys.exit("error: it is refused; its model.toml: " + (pathlib.Path(words[2]) / "lstm-whole/model.toml").read_text())
if words[0] == "compare":
    compare()
if words[0] == "serve":
    sys.exit("error: no server")
"""
    file = tmp_path / "figures.json"
    program, commands = stand_in(tmp_path, body)
    done = check(*QUICK, "--only", "cells", "--binary", program, "--json", file)
    assert done.returncode == 1, done.stdout + done.stderr
    rows = rows_of(file, "cells")
    assert parts(rows) == ["equality", "step", "signal", "served", "wire"]
    steps = {row["model"]: row for row in rows if row["part"] == "step"}
    assert "gpu_tolerance" in steps["lstm-tf32"]["error"]
    assert all(steps[name]["error"] == "" and steps[name]["16 us"] == 10.0 for name in steps if name != "lstm-tf32")
    served = {row["model"]: row["error"] for row in rows if row["part"] == "served"}
    assert "gpu_tolerance" in served["lstm-tf32"] and not served["lstm-tf32-process"]
    # The rival may round otherwise than the processor, and all its buckets may wait.
    assert all(part in served["lstm-whole"] for part in ("it is refused", "gpu_tolerance = 0.1", "max_queue = 100000"))
    compares = [words[1:] for words in commands() if words[1] == "compare"]
    assert not any("lstm-tf32" in words for words in compares), "a refused model was started again"
    # A bucket of 10 lengths each up to the longest sentence holds a full batch of 16.
    (whole,) = (words for words in compares if "lstm-whole" in words)
    assert int(whole[whole.index("--outstanding") + 1]) >= 17 * 16


def test_a_server_that_never_gets_ready_costs_its_part_only(tmp_path):
    body = """
if words[0] == "serve":
    os.execvp("sleep", ["sleep", "600"])
if words[0] == "profile":
    profile()
compare()
"""
    file = tmp_path / "figures.json"
    program, _ = stand_in(tmp_path, body)
    began = time.monotonic()
    check(*QUICK, "--only", "cells", "--minutes", 0.3, "--binary", program, "--json", file)
    assert time.monotonic() - began < 60, "it waited longer than it had time"
    found = json.loads(file.read_text())
    rows = found["sections"]["cells"]
    assert found["complete"] and parts(rows) == ["equality", "step", "signal", "served", "wire"]
    of = lambda part: [row["error"] for row in rows if row["part"] == part]
    assert "no server from" in of("equality")[0] and not any(of("step") + of("signal") + of("served"))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_is_killed_leaves_its_rows(end, tmp_path):
    body = """
if words[0] == "serve":
    sys.exit("error: no server")
if words[0] == "profile":
    profile()
(here / "began").touch()
os.execvp("sleep", ["sleep", "600"])
"""
    file = tmp_path / "figures.json"
    program, _ = stand_in(tmp_path, body)
    arguments = command([*QUICK, "--only", "cells", "--binary", program, "--json", file])
    environment = {**os.environ, "PYTHON": sys.executable}
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, start_new_session=True) as running:
        try:
            wait_for(lambda: (tmp_path / "began").exists(), running)
            if end == signal.SIGTERM:
                running.terminate()
                running.wait(60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    found = json.loads(file.read_text())
    steps = [row["model"] for row in found["sections"]["cells"] if row["part"] == "step"]
    assert len(steps) == 5 and not found["complete"]


def wait_for(event, running):
    until = time.monotonic() + 120
    while not event():
        assert running.poll() is None and time.monotonic() < until, "it ended, or got nowhere"
        time.sleep(0.02)


def test_a_refused_model_is_tried_with_nodes_on_the_processor_and_else_left_out(tmp_path):
    body = f"""
NAMES = ["bert-small", "resnet-small"]
if words[0] == "profile":
    toml = {{name: (pathlib.Path(words[1]) / name / "model.toml").read_text() for name in NAMES}}
    lets = lambda name: "allow_cpu_nodes = true" in toml[name]
    if not all(map(lets, NAMES)):
        profile({{name: "say allow_cpu_nodes = true" for name in NAMES if not lets(name)}})
    profile({{"resnet-small": "cannot run it at all"}})
if words[0] == "bench":
    print(json.dumps(dict(last_good=dict(rate=1.0, p50_ms=1.0, p99_ms=1.0))))
if words[0] == "serve":
    os.execv({str(BINARY)!r}, ["ripieno", *words])
"""
    file = tmp_path / "figures.json"
    program, commands = stand_in(tmp_path, body)
    done = check(*QUICK, "--only", "goodput", "--binary", program, "--json", file)
    found = json.loads(file.read_text())
    assert done.returncode == 1 and list(found["sections"]) == ["goodput"], done.stdout + done.stderr
    refused, *measured = found["sections"]["goodput"]
    assert (refused["model"], refused["error"]) == ("resnet-small", "cannot run it at all")
    assert [(row["model"], row["goodput_rps"], row["error"]) for row in measured] == 3 * [("bert-small", 1.0, "")]
    serves = [words for words in commands() if words[1] == "serve"]
    assert len(serves) == 3 and all("bert-small" in words and "resnet-small" not in words for words in serves)


@pytest.mark.parametrize("from_wheels", [False, True])
def test_cublas_is_found_in_the_packages(from_wheels, tmp_path):
    program, commands = stand_in(tmp_path, "sys.exit(1)")
    name, more = "nvidia/cu13/lib", []
    (tmp_path / "site" / name).mkdir(parents=True)
    if from_wheels:
        (tmp_path / "wheels").mkdir()
        with zipfile.ZipFile(tmp_path / "wheels/nvidia_cublas-13-py3-none-any.whl", "w") as wheel:
            wheel.writestr("nvidia/cublas/lib/libcublas.so.13", "")
        more = ["--wheels", tmp_path / "wheels"]
    variables = {"PYTHONPATH": str(tmp_path / "site"), "LD_LIBRARY_PATH": "/mine"}
    check(*QUICK, *more, "--only", "cells", "--binary", program, "--json", tmp_path / "figures.json", **variables)
    seen = {words[0] for words in commands() if words[1] in ("profile", "serve")}
    assert len(seen) == 1, seen
    folders = seen.pop().split(os.pathsep)
    assert folders[-1] == "/mine" and str(tmp_path / "site" / name) in folders
    assert not from_wheels or folders[0].endswith("nvidia/cublas/lib")


def run_inside(code):
    """What a piece of Python prints that imports the check's modules."""
    folders = [ROOT / "scripts/gpu_check", ROOT / "tests/models", ROOT / "tests/python"]
    code = "import sys\nsys.path[:0] = sys.argv[1:]\n" + code
    done = subprocess.run([sys.executable, "-c", code, *map(str, folders)], capture_output=True, text=True)
    return done.stdout.strip(), done.stdout + done.stderr


def test_answers_that_differ_are_found():
    shown, said = run_inside("""
from answers import compared
answer = lambda *numbers: [{"y": ("FP32", [1, len(numbers)], list(numbers))}]
words = lambda *numbers: [{"y": ("INT64", [1, len(numbers)], list(numbers))}]
row = lambda found, expected=answer(1.0, 2.0): compared("m", (expected, expected), found, False)
near, far, none, nan, short = answer(1.0, 2.001), answer(1.0, 2.1), [{}], answer(None, 2.0), answer(1.0)
print(*[row((near, near))["equal"], row((near, far))["equal"], row((far, near))["equal"], row((nan, nan))["equal"]])
print(row((near, none))["error"][:9], row((short, near))["error"][:9], row("no")["error"])
print(row((words(1, 3), words(1, 2)), words(1, 2))["alone"], row((words(1, 2), words(1, 2)), words(1, 2))["equal"])
""")
    assert shown.splitlines() == ["True False False False", "an answer an answer no", "0.5 True"], said


def test_a_product_alone_is_one_of_many_in_a_recorded_graph():
    shown, said = run_inside("""
import types

class Tensor:
    def __init__(self, *shape): self.shape = shape
    def __matmul__(self, other): return Tensor(self.shape[0], other.shape[1])

class Quiet:
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def wait_stream(self, other): pass

class Graph:
    recorded = 0
    def replay(self): log.append(("replay", self.recorded))

class Recording(Quiet):
    def __init__(self, graph): self.graph = graph
    def __enter__(self): cuda.now = self.graph
    def __exit__(self, *_): cuda.now = None

class Event:
    def __init__(self, enable_timing): pass
    def record(self): log.append("event")
    def elapsed_time(self, end): return 0.5

def matmul(x, factor, out):
    assert out.shape == (x.shape[0], factor.shape[1])
    if cuda.now: cuda.now.recorded += 1

log = []
cuda = types.SimpleNamespace(
    now=None, Stream=Quiet, current_stream=Quiet, stream=lambda stream: stream, CUDAGraph=Graph, graph=Recording, Event=Event,
    synchronize=lambda: log.append("end"),
)
backends = types.SimpleNamespace(cuda=types.SimpleNamespace(matmul=types.SimpleNamespace(allow_tf32=None)))
randn = lambda *shape, device, dtype: Tensor(*shape)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda, backends=backends, randn=randn, matmul=matmul, float32=1, float16=2)
import products
rows = list(products.products([1, 64], 8, 16))
print([row["model"] for row in rows], {row["64 us"] for row in rows}, log[:6])
""")
    assert shown == "['fp32', 'tf32', 'fp16'] {5.0} [('replay', 100), 'end', 'event', ('replay', 100), 'event', 'end']", said
