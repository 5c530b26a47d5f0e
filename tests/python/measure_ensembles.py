"""An ensemble with fan-out, live: one deadline for all of it beside dropping by stage.

    python tests/python/measure_ensembles.py BINARY [--rates 150,300,450] [--rounds 5] [--seconds 4]

BINARY is a release build of ripieno. The models are those of scenarios/ensemble/fan-out.toml on four emulated devices: a detector, three
models side by side on what it found, and one that joins them. `whole` has slo_ms = 100 of its own; `by stage` has none, so that each
step is late by the slo_ms of its model, which divide the 100 ms among the steps in series. Useful is what the client of either has
within 100 ms. Both take turns at each rate, on servers of their own.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import tempfile
import tomllib

from serving import ROOT, Server

SCENARIO = tomllib.loads((ROOT / "scenarios" / "ensemble" / "fan-out.toml").read_text())
SLO_MS = SCENARIO["ensemble"][0]["slo_ms"]
TAKEN = {"detect": ["IMAGE"], "cars": ["FOUND"], "people": ["FOUND"], "signs": ["FOUND"], "join": ["CARS", "PEOPLE", "SIGNS"]}
GIVEN = {"detect": "FOUND", "cars": "CARS", "people": "PEOPLE", "signs": "SIGNS", "join": "SCENE"}


def write(folder, budget):
    for model in SCENARIO["model"]:
        name, inputs = model["name"], [f"x{at}" for at in range(len(TAKEN[model["name"]]))]
        (folder / name).mkdir(parents=True)
        keys = "".join(f"{key} = {model[key]}\n" for key in ("alpha_ms", "beta_ms", "slo_ms", "max_batch"))
        tensor = '[[{}]]\nname = "{}"\ndatatype = "FP32"\nshape = [-1, 4]\n'
        keys += "".join(tensor.format("input", one) for one in inputs) + tensor.format("output", "y")
        (folder / name / "model.toml").write_text(keys)
    steps = ""
    for name, taken in TAKEN.items():
        maps = "".join(f'input_map {{ key: "x{at}" value: "{tensor}" }} ' for at, tensor in enumerate(taken))
        steps += f'step {{ model_name: "{name}" model_version: -1 {maps}output_map {{ key: "y" value: "{GIVEN[name]}" }} }}\n'
    slo = f'parameters {{ key: "slo_ms" value {{ string_value: "{SLO_MS}" }} }}\n' if budget == "whole" else ""
    (folder / "camera" / "1").mkdir(parents=True)
    (folder / "camera" / "config.pbtxt").write_text(
        f'platform: "ensemble"\nmax_batch_size: 8\n{slo}input {{ name: "IMAGE" data_type: TYPE_FP32 dims: 4 }}\n'
        f'output {{ name: "SCENE" data_type: TYPE_FP32 dims: 4 }}\nensemble_scheduling {{\n{steps}}}\n'
    )


def useful(binary, address, rate, seconds, seed):
    """Answers a second within the SLO."""
    command = [binary, "bench", address, "--model", "camera", "--rate", rate, "--duration", seconds, "--slo-ms", SLO_MS]
    command += ["--seed", seed, "--format", "json"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)
    report = json.loads(done.stdout)
    return report["runs"][0]["goodput_rps"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--rates", default="150,300,450")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    rates, binary, found = [float(rate) for rate in given.rates.split(",")], given.binary.resolve(), {}
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        servers = {}
        for budget in ("whole", "by stage"):
            folder = pathlib.Path(temporary) / budget.replace(" ", "-")
            write(folder, budget)
            devices = ("--device", "emulated", "--devices", str(SCENARIO["cluster"]["devices"]), "--policy", SCENARIO["policy"])
            servers[budget] = stack.enter_context(Server(folder, *devices, binary=binary))
        for turn in range(given.rounds):
            for rate in rates:
                for budget, server in servers.items():
                    found.setdefault((budget, rate), []).append(useful(binary, server.http, rate, given.seconds, turn + 1))
    print("| offered/s | " + " | ".join(f"{rate:.0f}" for rate in rates) + " |\n|---|" + "---|" * len(rates))
    for budget in servers:
        cells = (f"{statistics.median(found[budget, rate]):.0f}" for rate in rates)
        print(f"| {budget} | " + " | ".join(cells) + " |")
    ratios = [statistics.median(a / b for a, b in zip(found["whole", rate], found["by stage", rate], strict=True)) for rate in rates]
    print("| ratio | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")


if __name__ == "__main__":
    main()
