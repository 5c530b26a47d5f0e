"""Whole models on a device: answers, latencies, goodput, saturation, and the time outside of operators."""

from concurrent import futures

import repository
from answers import ask, compared, refused

PROBE_S, WARM_UP_S = 2.0, 0.5


def equality(check):
    """Whether every demo and test model answers as on the processor, alone and in batches; the demo models first."""
    for kind, seconds in [("demo", 15), ("test", 40)]:
        check.attempt(seconds, {}, equal_models, check, kind)


def equal_models(check, kind):
    folder = check.folder / kind
    folder.mkdir()
    write = repository.demo_models if kind == "demo" else repository.test_models
    requests = write(folder, check.quick)
    expected, _ = serve_all(check, folder, "cpu", requests)
    found, allowed = serve_all(check, folder, check.device, requests)
    return [compared(name, expected[name], found[name], name in allowed) for name in requests]


def serve_all(check, folder, device, requests):
    """The answers of each model, or the reason for which it has none; and the models that need nodes on the processor."""
    allowed = set()
    while True:
        if late := check.missing(10):
            return dict.fromkeys(requests, late), allowed
        with check.server(folder, *check.flags(device)) as server:
            errors = refused(server)
            refusals = {name for name, error in errors.items() if "allow_cpu_nodes" in error} - allowed
            if not refusals:
                return {name: ask(check, server, name, requests[name], errors) for name in requests}, allowed
        for name in refusals:
            repository.allow_cpu_nodes(folder, name)
        allowed |= refusals


def latency(check):
    """Latency by batch size, in the server's executor and in ONNX Runtime alone; then the sizes that a model gets by itself."""
    large = check.large
    if late := check.missing(20):
        check.add(error=late)
    else:
        with check.part():
            for name, report in large.reports.items():
                check.attempt(0, {"model": name}, latencies, check, name, report)
    # The last one has no convolutions, so that its sizes need no sessions of their own.
    name = large.names[-1]
    check.attempt(15, {"part": "sizes by itself", "model": name}, own_sizes, check, name)


def latencies(check, name, report):
    if report["error"]:
        yield {"error": report["error"]}
        return
    given_up = False
    for size in report["batch_sizes"]:
        ms, alone = report["profile"]["latency_ms"][size - 1], None
        # Why ONNX Runtime alone is not measured from this size on.
        why = None if given_up else check.missing(5)
        if not (given_up or why):
            try:
                alone = check.large.library_ms(name, size)
            except Exception as cause:
                why = " ".join(str(cause).split())
        given_up = given_up or bool(why)
        row = {"rows": size, "ms": ms, "rows_per_s": 1e3 * size / ms, "onnxruntime_ms": alone}
        yield {**row, "cpu_nodes": name in check.large.cpu_nodes, "error": why and f"ONNX Runtime alone, from here on: {why}"}


def own_sizes(check, name):
    """Which of 48, 96 and 192 rows the server pads to where nothing says which sizes batches have."""
    (report,) = check.large.profile(check.large.with_other_sizes(name))
    if report["error"]:
        yield {"error": report["error"]}
        return
    times = report["profile"]["latency_ms"]
    shown = [size for size in (1, 8, 16, 32, 48, 64, 96, 128, 192, 256) if size <= len(times)]
    yield {"batch_sizes": report.get("batch_sizes"), **{f"{size} ms": times[size - 1] for size in shown}}


def target(report):
    """An SLO of two and a half times what a middle batch takes, and the rate at which a search begins."""
    times = [(size, report["profile"]["latency_ms"][size - 1]) for size in report["batch_sizes"]]
    slo = max(5, round(2.5 * times[len(times) * 2 // 3][1]))
    return slo, max(1e3 * size / ms for size, ms in times if size == times[0][0] or 2 * ms <= slo)


def goodput(check):
    """The highest rate at which at most 1 % of the requests miss the SLO, by policy. A model that is refused is not tried."""
    if late := check.missing(30):
        check.add(error=late)
        return
    large = check.large
    targets = {name: target(report) for name, report in large.reports.items() if not report["error"]}
    for name, report in large.reports.items():
        if report["error"]:
            check.add(model=name, error=report["error"])
    models = sorted(targets)[:1] if check.quick else sorted(targets)
    for name in models:
        repository.set_slo(large.folder, name, targets[name][0])
    fractions = ["0.2"] if check.quick else ["0.2", "0.05", "0.5"]
    policies = [("default", []), ("eager", ["--policy", "eager"])]
    policies += [(f"timeout {part} SLO", ["--policy", "timeout", "--option", f"timeout_slo={part}"]) for part in fractions]
    loads = [word for name in models for word in ("--load-model", name)]
    for policy, flags in policies if models else []:
        if late := check.missing(30):
            check.add(policy=policy, error=late)
            continue
        explicit = ["--model-control-mode", "explicit", *loads]
        with check.part(policy=policy), check.server(large.folder, *check.flags(check.device), *flags, *explicit) as server:
            for name in models:
                check.attempt(25, {"policy": policy, "model": name}, search, check, server, name, *targets[name])


def search(check, server, name, slo, rate):
    seconds, step = (0.4, 0.25) if check.quick else (PROBE_S, 0.05)
    found = check.ripieno(
        "bench", server.http, "--model", name, "--find-goodput", "--rate", f"{rate:.1f}", "--slo-ms", slo,
        "--duration", seconds, "--warmup", WARM_UP_S / (4 if check.quick else 1), "--goodput-step", step,
    )  # fmt: skip
    good = found.get("last_good")
    percentiles = {key: good[key] if good else None for key in ("p50_ms", "p99_ms")}
    yield {"slo_ms": slo, "goodput_rps": good["rate"] if good else 0.0, **percentiles}


def overlap(check):
    """Rows a second of full batches beside the library alone in a loop; more than it can; all models on two lanes and on one."""
    large = check.large
    for name in large.names:
        check.attempt(15, {"part": "saturated", "model": name}, saturated, check, name)
    check.attempt(20, {"part": "too much", "model": large.names[-1]}, too_much, check, large.names[-1])
    for executors in (1, 2):
        check.attempt(25, {"part": "lanes", "lanes": executors}, lanes, check, executors)


def of_library(check, name, rows_per_s):
    """The rows a second of the library in a loop with the largest batches, and the part of them that the server answers."""
    library = 1e3 * check.large.largest / check.large.library_ms(name, check.large.largest)
    return {"rows_per_s": rows_per_s, "library_rows_per_s": library, "of_library": rows_per_s / library}


def compare_live(check, folder, name, policies, seconds, rounds, *flags):
    """The result of each policy, in one interleaved run."""
    words = [word for policy in policies for word in ("--policy", policy)]
    return check.ripieno(
        "compare", "--live", folder, "--model", name, *words, "--seconds", seconds, "--rounds", rounds, *flags
    )["results"]  # fmt: skip


def saturated(check, name):
    """Enough requests that the next batch always waits. An SLO of its own lets batches be full."""
    seconds, rounds = (0.5, 1) if check.quick else (3.0, 2)
    flags = ["--outstanding", 4 * check.large.largest, *check.flags(check.device)]
    (found,) = compare_live(check, check.large.folder, name, ["unified,slo_ms=2000"], seconds, rounds, *flags)
    yield {
        "rows_per_task": found["rows_per_task"], **of_library(check, name, found["answered_rps"]),
        "gather_ms": found["task"]["gather_us"] / 1e3, "compute_ms": found["task"]["compute_us"] / 1e3,
        "gathered_ahead": found["tasks_gathered_ahead_fraction"],
    }  # fmt: skip


def too_much(check, name):
    """More requests than the library alone could answer, within an SLO of 20 ms."""
    seconds, rate = (0.5, 400) if check.quick else (4, 9000)
    policies = [f"{policy},slo_ms=20" for policy in ("unified", "deferred", "eager")]
    flags = ["--rate", rate, *check.flags(check.device)]
    for found in compare_live(check, check.large.folder, name, policies, seconds, 1, *flags):
        keys = ("policy", "rows_per_task", "bad_rate", "violation_rate", "p50_ms", "p99_ms")
        yield {"offered": rate, **{key: found[key] for key in keys}, **of_library(check, name, found["answered_rps"])}


def lanes(check, executors):
    """All models at the same time on one device, with this many lanes: 60 % of what each could do alone is more than one lane can."""
    large, seconds = check.large, 1 if check.quick else 4
    for name in large.names:
        repository.set_slo(large.folder, name, 2000)
    most = {name: 1e3 * large.largest / large.library_ms(name, large.largest) for name in large.names}
    rates = {name: 50.0 if check.quick else 0.6 * most[name] for name in large.names}
    flags = [*check.flags(check.device), "--policy", "dva", "--option", f"executors={executors}"]
    with check.server(large.folder, *flags) as server, futures.ThreadPoolExecutor(len(rates)) as threads:
        bench = lambda name: check.ripieno(
            "bench", f"grpc://{server.grpc}", "--model", name, "--rate", f"{rates[name]:.1f}", "--duration", seconds
        )  # fmt: skip
        for name, found in zip(rates, threads.map(bench, rates), strict=True):
            keys = ("achieved_rps", "bad_rate", "p50_ms", "p99_ms", "send_lag_p99_ms")
            yield {"model": name, "lanes": executors, "offered": rates[name], **{key: found.get(key) for key in keys}}


def gaps(check):
    """How much of a batch ONNX Runtime spends outside of its operators."""
    for name in check.large.names:
        for size in (1, 8):
            check.attempt(5, {"model": name}, launch_gaps, check, name, size)


def launch_gaps(check, name, size):
    import site_library

    large = check.large
    yield site_library.launch_gaps(large.file(name), large.inputs(name), check.device, size, check.folder)
