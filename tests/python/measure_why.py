"""Whether the change that `ripieno doctor` names removes as many late requests from a live server as it promises.

    python tests/python/measure_why.py [--binary FILE] [--seconds S]

A server with an emulated device is overloaded in ways that one setting cures, and its last minutes are dumped. The same load
then meets a server with the change. Printed beside each other: what `doctor` promises and what the live server does.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile
import urllib.request

from serving import BINARY, Server

DRILLS = {
    "overload": (1.3, "gamma:1", 60),
    "bursts": (0.75, "gamma:0.1", 40),
    "SLO too short": (0.55, "gamma:0.5", 8),
}
ALPHA_MS, BETA_MS, MAX_BATCH = 1, 3, 8
CAPACITY = MAX_BATCH / (ALPHA_MS * MAX_BATCH + BETA_MS) * 1e3


def run(binary, folder, drill, seconds, slo_ms, devices, max_batch, *flags):
    """Late requests in a thousand, and the recording."""
    share, arrival, _ = DRILLS[drill]
    (folder / "m" / "1").mkdir(parents=True, exist_ok=True)
    longest = max(max_batch, 2 * MAX_BATCH)
    latency = ", ".join(str(BETA_MS + ALPHA_MS * rows) for rows in range(1, longest + 1))
    profile = f"slo_ms = {slo_ms}\nlatency_ms = [{latency}]\nmax_batch = {max_batch}\n"
    (folder / "m" / "model.toml").write_text(profile)
    with Server(folder, "--device", "emulated", "--devices", str(devices), *flags, binary=binary) as server:
        command = [str(binary), "bench", server.http, "--model", "m", "--rate", str(CAPACITY * share), "--arrival", arrival]
        more = ["--duration", str(seconds), "--warmup", "0", "--format", "json"]
        subprocess.run([*command, *more], check=True, stdout=subprocess.DEVNULL, timeout=300)
        call = urllib.request.Request(f"http://{server.http}/v2/recording/dump", method="POST")
        recording = folder.parent / "last.jsonl"
        with urllib.request.urlopen(call, timeout=60) as reply:
            recording.write_bytes(reply.read())
    said = json.loads(subprocess.check_output([str(binary), "why", "--format", "json", recording], timeout=300))
    return said["bad"] / said["requests"] * 1e3, recording


def drill(binary, name, seconds):
    slo_ms, devices, max_batch, flags = DRILLS[name][2], 1, MAX_BATCH, []
    with tempfile.TemporaryDirectory() as folder:
        models = pathlib.Path(folder) / "models"
        before, recording = run(binary, models, name, seconds, slo_ms, devices, max_batch)
        said = json.loads(subprocess.check_output([str(binary), "doctor", "--format", "json", recording], timeout=300))
        change = said["change"]
        if change is None:
            print(f"{name:14} {before:5.0f} ‰ late; {said['says']}")
            return
        key, value = change.split("=")
        match key:
            case "devices":
                devices = int(value)
            case "slo.m":
                slo_ms = float(value)
            case "max_batch.m":
                max_batch = int(value)
            case "policy":
                flags = ["--policy", value]
            case _:
                raise AssertionError(f"{name}: {change} is not a setting of this drill")
        promised = next(each["removed"] for each in said["tried"] if each["change"] == change)
        after, _ = run(binary, models, name, seconds, slo_ms, devices, max_batch, *flags)
        removed = 1 - after / before
        print(f"{name:14} {before:5.0f} ‰ late; {change}: promised {promised:.1%}, removed {removed:.1%}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=BINARY)
    parser.add_argument("--seconds", type=float, default=15)
    given = parser.parse_args()
    for name in DRILLS:
        drill(given.binary, name, given.seconds)
