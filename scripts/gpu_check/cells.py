"""Cells on a GPU: whether walks answer as on the processor, what a step takes, and how many sequences a second are served.

Cells have an engine of their own and need no ONNX Runtime. The LSTM has a state of 1,024, as in the papers, takes ids from a table
of 1,000, and sequences of English sentences' lengths with a mean of 24. Beside it, where ONNX Runtime can use the device: the same
LSTM as one operator over whole sequences (on a GPU cuDNN's), padded to buckets of 10 lengths.
"""

import cell_models
import products
import repository
from answers import ask, compared, refused

SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
LENGTHS = ["--lengths", "europarl", "--vocabulary", cell_models.IDS]
RATES = [5_000, 20_000]
MAIN, OWN_PROCESS = "lstm-tf32", "lstm-tf32-process"
# Steps of each request while the cells with almost no work are measured.
STEPS = 200


def engine(device):
    return ["--device", device, "--engine", "auto" if device != "cpu" else "cpu"]


def cells(check):
    """All parts, the most important ones first."""
    folder = check.folder / "cells"
    cell_models.write(folder, check.folder / "files", check.quick)
    errors = {}
    check.attempt(15, {"part": "equality"}, equality, check)
    check.attempt(25, {"part": "step"}, steps, check, folder, errors)
    for name in ("tiny", "tiny-product"):
        check.attempt(8, {"part": "signal", "model": name}, signal, check, folder, name, errors)
    serve(check, folder, MAIN, errors, None)
    whole(check, errors, None)
    if check.quick:
        serve(check, folder, OWN_PROCESS, errors, None)
        over_wire(check, folder)
        return
    serve(check, folder, MAIN, errors, RATES)
    serve(check, folder, OWN_PROCESS, errors, None)
    over_wire(check, folder)
    whole(check, errors, RATES)
    for rates, names in [(None, ["lstm-fp16", "lstm-fp32"]), (RATES, [OWN_PROCESS, "lstm-fp16", "lstm-fp32"])]:
        for name in names:
            serve(check, folder, name, errors, rates)
    if check.device != "cpu":
        check.attempt(15, {"part": "product alone"}, products.products, SIZES, 2 * cell_models.HIDDEN, 4 * cell_models.HIDDEN)


def equality(check):
    """Whether the demo models in cells answer as on the processor, alone and together."""
    folder = check.folder / "walks"
    requests = repository.demo_models(folder, False, repository.DEMOS_IN_CELLS)
    sides = []
    for device in ("cpu", check.device):
        with check.server(folder, *engine(device)) as server:
            errors = refused(server)
            sides.append({name: ask(check, server, name, requests[name], errors) for name in requests})
    yield from (compared(name, sides[0][name], sides[1][name], False) for name in requests)


def steps(check, folder, errors):
    """Microseconds of a step by batch size, with gathering and the way to the device's thread."""
    for report in check.ripieno("profile", folder, *engine(check.device))["models"]:
        if report["error"]:
            errors[report["name"]] = report["error"]
        times = (report["blocks"] or [{}])[0].get("latency_ms") or []
        sizes = {f"{size} us": round(1e3 * times[size - 1], 1) for size in SIZES if size <= len(times)}
        yield {"model": report["name"], "error": report["error"], **sizes}


def signal(check, folder, name, errors):
    """The time of a step with almost no work: one request at a time, one row, by policies that decide one step and several ahead."""
    if why := errors.get(name):
        yield {"error": why}
        return
    load = ["--outstanding", 1, "--lengths", STEPS, "--vocabulary", cell_models.IDS]
    for result in compare(check, folder, name, ["unified", "cellular"], 0.5 if check.quick else 1, load, engine(check.device)):
        yield {"policy": result["policy"], "us_a_step": 1e6 / max(1e-9, result["answered_rps"] * STEPS), **task_us(result)}


def serve(check, folder, name, errors, rates):
    load = ["--outstanding", 64 if check.quick else 2048]
    policies = ["unified", "cellular"]
    known = {"part": "served", "model": name, "offered": rates}
    seconds = 0.5 if check.quick else 3
    check.attempt(
        30 if rates else 15, known, served, check, folder, name, policies, seconds, rates, load, engine(check.device), errors
    )


def whole(check, errors, rates):
    """The LSTM over whole sequences. At saturation each of some 17 buckets must hold a full batch, and turns last for a while."""
    known = {"part": "served", "model": "lstm-whole", "offered": rates}
    if not check.library:
        if rates is None:
            check.add(**known, note="not measured: it needs ONNX Runtime, with its CUDA provider on a GPU; see --wheels")
        return
    folder = check.folder / "whole"
    if not folder.is_dir():
        with check.part(**known):
            cell_models.write_whole(folder, check.quick)
    load = ["--outstanding", 18 * (16 if check.quick else 512)]
    seconds = 0.5 if check.quick else 3 if rates else 10
    flags = check.flags(check.device)
    check.attempt(30, known, served, check, folder, "lstm-whole", ["bucketed"], seconds, rates, load, flags, errors)


def served(check, folder, name, policies, seconds, rates, load, flags, errors):
    """Sequences a second at saturation, or latencies at each rate, by requests made within the server."""
    if why := errors.get(name):
        yield {"error": why}
        return
    load = [word for rate in rates for word in ("--rate", rate)] if rates else load
    for result in compare(check, folder, name, policies, seconds, [*load, *LENGTHS], flags):
        keys = ("policy", "answered_rps", "bad_rate", "p50_ms", "p90_ms", "p99_ms", "rows_per_task", "tasks_per_s")
        yield {"offered": result["offered_rps"], **{key: result[key] for key in keys}, **task_us(result)}


def compare(check, folder, name, policies, seconds, load, flags):
    words = [word for policy in policies for word in ("--policy", policy)]
    return check.ripieno(
        "compare", "--live", folder, "--model", name, *words, "--rounds", 1, "--seconds", seconds, *load, *flags
    )["results"]  # fmt: skip


def task_us(result):
    return {part: round(value, 1) for part, value in result["task"].items() if part.endswith("_us")}


def over_wire(check, folder):
    check.attempt(20, {"part": "wire", "model": MAIN}, wire, check, folder)


def wire(check, folder):
    """The same over gRPC, from this machine."""
    explicit = ["--load-model", MAIN, "--model-control-mode", "explicit"]
    with check.server(folder, *engine(check.device), *explicit) as server:
        for rate in [200] if check.quick else RATES:
            seconds = 1 if check.quick else 3
            found = check.ripieno(
                "bench", f"grpc://{server.grpc}", "--model", MAIN, "--rate", rate, "--duration", seconds, *LENGTHS
            )
            keys = ("achieved_rps", "p50_ms", "p90_ms", "p99_ms", "send_lag_p99_ms")
            yield {"offered": rate, **{key: found.get(key) for key in keys}}
