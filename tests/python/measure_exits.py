"""What early exits save: the demo model with its exits and without, asked about held-out images in turn.

    python tests/python/measure_exits.py [FLAG ...]

One server holds both. A closed loop of 1 and of 8 clients, three rounds of each model in turn; flags go to `ripieno serve`.
"""

import pathlib
import shutil
import sys
import tempfile
import threading
import time

import numpy as np
import tritonclient.http

import repositories
from serving import ROOT, Server

sys.path.insert(0, str(ROOT / "models" / "training"))
import train_shapes  # noqa: E402

NAME, IMAGES, ROUNDS = "shapes-exits", 4000, 3


def write(repository):
    text = (repositories.DEMO / NAME / "model.toml").read_text().replace("slo_ms = 50", "slo_ms = 20000")
    lines = [line for line in text.splitlines() if not line.startswith("exit_")]
    for name, toml in (("with-exits", text), ("without", "\n".join(lines))):
        shutil.copytree(repositories.DEMO / NAME / "1", repository / name / "1")
        (repository / name / "model.toml").write_text(toml)


def turn(address, model, images, clients):
    """The class of each image, and the mean latency in milliseconds."""
    said, spans = [None] * len(images), []

    def work(first):
        client = tritonclient.http.InferenceServerClient(address)
        for at in range(first, len(images), clients):
            tensor = tritonclient.http.InferInput("image", [1, *images[at].shape], "FP32")
            tensor.set_data_from_numpy(images[at][None])
            wanted = [tritonclient.http.InferRequestedOutput("logits")]
            begun = time.perf_counter()
            said[at] = client.infer(model, [tensor], outputs=wanted).as_numpy("logits").argmax()
            spans.append(time.perf_counter() - begun)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return np.array(said), 1e3 * float(np.mean(spans))


def main():
    drawn = [train_shapes.draw(train_shapes.HELD_OUT, at) for at in range(IMAGES)]
    images = np.stack([image for image, _ in drawn]).astype(np.float32) * np.float32(train_shapes.SCALE)
    truth = np.array([label for _, label in drawn])
    with tempfile.TemporaryDirectory() as folder:
        write(pathlib.Path(folder))
        with Server(folder, *sys.argv[1:]) as server:
            for clients in (1, 8):
                means, right = {"with-exits": [], "without": []}, {}
                for _ in range(ROUNDS):
                    for model, spans in means.items():
                        said, mean = turn(server.http, model, images, clients)
                        right[model] = float((said == truth).mean())
                        spans.append(mean)
                for model, spans in means.items():
                    each = ", ".join(f"{mean:.2f}" for mean in spans)
                    print(f"{clients} clients, {model}: {right[model]:.1%} right, mean {np.median(spans):.2f} ms ({each})")
                saved = 1 - np.median(np.array(means["with-exits"]) / np.array(means["without"]))
                print(f"{clients} clients: {saved:.0%} lower mean latency, the median of {ROUNDS} pairs", flush=True)


if __name__ == "__main__":
    main()
