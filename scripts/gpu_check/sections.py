"""The parts of the check. Each returns rows for its table, and raises nothing for a model that fails: the row says so."""

import http.client
import json
import subprocess
import threading
import time

import numpy as np
import repository
from as_they_come import infer
from serving import Server

# The largest difference of FP32 answers, relative to an output's largest number, that counts as equal.
EQUAL = 5e-3
PROBE_S, WARM_UP_S = 2.0, 0.5


class Check:
    """What all parts share: binary, device, minutes, folder."""

    def __init__(self, binary, device, quick, minutes, folder, library):
        self.binary, self.device, self.quick, self.folder = binary, device, quick, folder
        self.until = time.monotonic() + 60 * minutes
        self.library = library

    def left(self):
        return self.until - time.monotonic()

    def missing(self, seconds):
        """Why something that takes this long is left out; none if there is time for it."""
        left = max(0.0, self.left())
        return f"not measured: it takes {seconds} s, and {left:.0f} s are left" if left < seconds else None

    def flags(self, device):
        return ["--device", device, "--engine", "onnxruntime", "--onnxruntime", str(self.library)]

    def server(self, folder, device, *flags):
        return Server(folder, *self.flags(device), *flags, binary=self.binary)

    def ripieno(self, *arguments):
        """The JSON that a command prints."""
        done = subprocess.run(
            [str(self.binary), *map(str, arguments), "--format", "json"],
            capture_output=True, text=True, timeout=max(1.0, self.left()),
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"ripieno {arguments[0]}: {done.stderr.strip()[-500:]}")
        return json.loads(done.stdout)


def library():
    """The library of ONNX Runtime in Python's package."""
    import site_library

    return site_library.library()


FAULTS = (OSError, ValueError, KeyError, http.client.HTTPException)


def difference(expected, found):
    """The largest difference of two answers: of floats relative to the largest number, of others the share that differs."""
    most = 0.0
    for name, array in expected.items():
        other = found.get(name)
        if other is None or other.shape != array.shape:
            return float("inf")
        if array.dtype.kind == "f" and other.dtype.kind == "f":
            gap = float(np.abs(array - other).max(initial=0.0) / max(np.abs(array).max(initial=0.0), 1e-6))
            # The larger of a number and of none is the number.
            most = max(most, gap) if np.isfinite(gap) else float("inf")
        else:
            most = max(most, float(np.mean(array != other)) if array.size else 0.0)
    return most


def answers(server, name, requests):
    """The answers one after the other, and all at the same time."""
    alone = [infer(server, name, tensors) for tensors in requests]
    together = [None] * len(requests)

    def client(at):
        try:
            together[at] = infer(server, name, requests[at])
        except FAULTS:
            together[at] = {}

    threads = [threading.Thread(target=client, args=(at,)) for at in range(len(requests))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return alone, together


def serve_all(check, folder, device, requests):
    """The answers of each model, or the reason for which it has none; and the models that need nodes on the processor."""
    allowed = set()
    while True:
        if late := check.missing(30):
            return dict.fromkeys(requests, late), allowed
        with check.server(folder, device) as server:
            errors = {report["name"]: report["error"] for report in server.ready["models"] if report["error"]}
            refused = {name for name, error in errors.items() if "allow_cpu_nodes" in error} - allowed
            if not refused:
                return {name: ask_all(check, server, name, requests[name], errors) for name in requests}, allowed
        for name in refused:
            repository.allow_cpu_nodes(folder, name)
        allowed |= refused


def ask_all(check, server, name, requests, errors):
    if why := errors.get(name) or check.missing(5):
        return why
    try:
        return answers(server, name, requests)
    except FAULTS as error:
        return str(error)


def equality(check):
    """Whether every demo and test model answers as on the processor, alone and in batches."""
    folder = check.folder / "answers"
    folder.mkdir()
    requests = {**repository.demo_models(folder, check.quick), **repository.test_models(folder, check.quick)}
    expected, _ = serve_all(check, folder, "cpu", requests)
    found, allowed = serve_all(check, folder, check.device, requests)
    return [compared(name, expected[name], found[name], name in allowed) for name in requests]


def compared(name, expected, found, cpu_nodes):
    row = {"model": name, "cpu_nodes": cpu_nodes, "alone": None, "together": None, "equal": False, "error": ""}
    for side in (expected, found):
        if isinstance(side, str):
            return {**row, "error": side}
    (reference, _), (alone, together) = expected, found
    most = [max(map(difference, reference, side)) for side in (alone, together)]
    if not np.isfinite(most).all():
        return {**row, "error": "an answer is missing, is no number or has another shape"}
    return {**row, "alone": most[0], "together": most[1], "equal": max(most) <= EQUAL}


def latency(check, built, largest):
    """Latency by batch size: in the server's executor, and in ONNX Runtime alone, called from Python."""
    if late := check.missing(30):
        return [{"model": "", "error": late}]
    folder = check.folder / "built"
    repository.write_built(folder, built, largest, {})
    profile = lambda: check.ripieno("profile", folder, *check.flags(check.device))["models"]
    reports = profile()
    refused = [report["name"] for report in reports if "allow_cpu_nodes" in (report["error"] or "")]
    if refused:
        [repository.allow_cpu_nodes(folder, name) for name in refused]
        reports = profile()
    return [row for report in reports for row in latencies(check, folder, report, built, report["name"] in refused)]


def latencies(check, folder, report, built, cpu_nodes):
    import site_library

    name = report["name"]
    if report["error"]:
        return [{"model": name, "error": report["error"]}]
    made, inputs, rows = site_library.session(folder / name / "1/model.onnx", check.device), built[name][1], []
    for size in report["batch_sizes"]:
        ms = report["profile"]["latency_ms"][size - 1]
        row = {"model": name, "rows": size, "ms": ms, "rows_per_s": 1e3 * size / ms, "onnxruntime_ms": None, "cpu_nodes": cpu_nodes}
        late = check.missing(5)
        if not late:
            row["onnxruntime_ms"] = site_library.run_ms(made, inputs, size, 3 if check.quick else 10)
        rows.append({**row, "error": late or ""})
    return rows


def targets(rows):
    """An SLO of each model, twice and a half what a middle batch takes, and the rate at which a search begins."""
    slos, rates = {}, {}
    for name in {row["model"] for row in rows if "ms" in row}:
        sizes = [row for row in rows if row["model"] == name]
        middle = sizes[len(sizes) * 2 // 3]
        slos[name] = max(5, round(2.5 * middle["ms"]))
        rates[name] = max(row["rows_per_s"] for row in sizes if row is sizes[0] or 2 * row["ms"] <= slos[name])
    return slos, rates


def goodput(check, built, largest, profiled):
    """The highest rate at which at most 1 % of the requests miss the SLO, by policy."""
    slos, rates = targets(profiled)
    folder = check.folder / "built"
    fractions = ["0.2"] if check.quick else ["0.05", "0.2", "0.5"]
    policies = [("default", []), ("eager", ["--policy", "eager"])]
    policies += [(f"timeout {part} SLO", ["--policy", "timeout", "--option", f"timeout_slo={part}"]) for part in fractions]
    models = sorted(slos)[:1] if check.quick else sorted(slos)
    return searches(check, folder, policies, models, slos, rates)


def searches(check, folder, policies, models, slos, rates):
    """A search for each policy and model. What there is no time for is a row that says so."""
    for name in slos:
        file = folder / name / "model.toml"
        text = file.read_text().splitlines()
        file.write_text("\n".join(f"slo_ms = {slos[name]}" if line.startswith("slo_ms") else line for line in text) + "\n")
    rows = []
    for policy, flags in policies:
        if late := check.missing(30):
            rows.append({"policy": policy, "error": late})
            continue
        with check.server(folder, check.device, *flags) as server:
            for name in models:
                try:
                    rows.append(search(check, server, policy, name, slos[name], rates[name]))
                except (RuntimeError, subprocess.TimeoutExpired, *FAULTS) as cause:
                    rows.append({"policy": policy, "model": name, "error": " ".join(str(cause).split())})
    return rows


def search(check, server, policy, name, slo, rate):
    if late := check.missing(15):
        return {"policy": policy, "model": name, "error": late}
    seconds, step = (0.4, 0.25) if check.quick else (PROBE_S, 0.05)
    found = check.ripieno(
        "bench", server.http, "--model", name, "--find-goodput", "--rate", f"{rate:.1f}", "--slo-ms", slo,
        "--duration", seconds, "--warmup", WARM_UP_S / (4 if check.quick else 1), "--goodput-step", step,
    )  # fmt: skip
    good = found.get("last_good")
    return {
        "policy": policy, "model": name, "slo_ms": slo, "goodput_rps": good["rate"] if good else 0.0,
        "p50_ms": good["p50_ms"] if good else None, "p99_ms": good["p99_ms"] if good else None, "error": "",
    }  # fmt: skip


def overlap(check, built, largest, profiled):
    """Rows a second of the largest batches in the server, beside the library alone in a loop."""
    rows = []
    for name in built:
        alone = [row for row in profiled if row.get("model") == name and row.get("onnxruntime_ms")]
        late = check.missing(30) or ("" if alone else "the latencies of this model are missing")
        try:
            rows.append({"model": name, "error": late} if late else overlapped(check, name, largest, alone[-1]))
        except (RuntimeError, subprocess.TimeoutExpired) as cause:
            rows.append({"model": name, "error": " ".join(str(cause).split())})
    return rows


def overlapped(check, name, largest, alone):
    """One model: enough requests that the next batch always waits. Its own SLO lets batches be full."""
    seconds, rounds = (0.5, 1) if check.quick else (4.0, 3)
    found = check.ripieno(
        "compare", "--live", check.folder / "built", "--model", name, "--policy", "unified,slo_ms=2000",
        "--outstanding", 4 * largest, "--seconds", seconds, "--rounds", rounds, *check.flags(check.device),
    )["results"][0]  # fmt: skip
    library, task = 1e3 * alone["rows"] / alone["onnxruntime_ms"], found["task"]
    return {
        "model": name, "rows_per_task": found["rows_per_task"], "rows_per_s": found["answered_rps"],
        "library_rows_per_s": library, "of_library": found["answered_rps"] / library,
        "gather_ms": task["gather_us"] / 1e3, "compute_ms": task["compute_us"] / 1e3,
        "gathered_ahead": found["tasks_gathered_ahead_fraction"], "error": "",
    }  # fmt: skip


def gaps(check, built, largest):
    """How much of a batch ONNX Runtime spends outside of its operators."""
    import site_library

    rows = []
    for name, (_, inputs) in built.items():
        for size in (1, 8):
            if late := check.missing(5):
                rows.append({"model": name, "error": late})
                continue
            file = check.folder / "built" / name / "1/model.onnx"
            rows.append({"model": name, "error": "", **site_library.launch_gaps(file, inputs, check.device, size, check.folder)})
    return rows
