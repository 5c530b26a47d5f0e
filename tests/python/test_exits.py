"""The demo model with exits: easy images leave early with their head's answer, and nothing changes for those that stay."""

import json
import tomllib

import numpy as np
import onnxruntime
import tritonclient.http

import repositories
from serving import ROOT, Server, counted

NAME = "shapes-exits"
TOLERANCE = 1e-4


def images():
    samples = json.loads((ROOT / "models" / "samples" / "shapes.json").read_text())
    rows = np.array([row["data"] for row in samples["rows"]], np.float32) * np.float32(samples["scale"])
    return rows.reshape(-1, *samples["shape"])


def rules():
    """(file, output, threshold) of each block; none at the last."""
    blocks = tomllib.loads((repositories.DEMO / NAME / "model.toml").read_text())["block"]
    for block in blocks:
        rule = block.get("exit_when")
        yield block["file"], *(rule.split(" > ") if rule else (None, None))


def expected(x):
    """For every image the logits of the exit that it leaves by, and the number of that block."""
    logits, left = [None] * len(x), [None] * len(x)
    tensors = {"image": x}
    for at, (file, output, threshold) in enumerate(rules()):
        session = onnxruntime.InferenceSession(repositories.DEMO / NAME / "1" / file)
        names = [value.name for value in session.get_outputs()]
        given = dict(zip(names, session.run(names, {i.name: tensors[i.name] for i in session.get_inputs()})))
        answer = given[next(name for name in names if name.endswith("logits"))]
        for row in range(len(x)):
            if left[row] is None and (output is None or given[output][row, 0] > float(threshold)):
                logits[row], left[row] = answer[row], at
        tensors = given
    return np.array(logits), np.array(left)


def ask(server, model, x):
    client = tritonclient.http.InferenceServerClient(server.http, concurrency=16)
    requests = []
    for row in x:
        tensor = tritonclient.http.InferInput("image", [1, *row.shape], "FP32")
        tensor.set_data_from_numpy(row[None])
        requests.append(client.async_infer(model, [tensor]))
    results = [request.get_result() for request in requests]
    assert all([output["name"] for output in result.get_response()["outputs"]] == ["logits"] for result in results)
    return np.concatenate([result.as_numpy("logits") for result in results])


def test_easy_images_leave_early_and_the_others_stay_as_they_are(tmp_path):
    x = images()
    logits, left = expected(x)
    assert 0 < (left < 2).sum() < len(x), "some leave, and some stay"
    toml = (repositories.DEMO / NAME / "model.toml").read_text().replace("slo_ms = 50", "slo_ms = 20000")
    repositories.copy_demo(tmp_path, NAME, toml)
    for policy in ("dva", "unified"):
        with Server(tmp_path, "--policy", policy) as server:
            np.testing.assert_allclose(ask(server, NAME, x), logits, rtol=0, atol=TOLERANCE)
            early = counted(server.scrape(), "ripieno_early_exits_total", model=NAME)
            assert early == (left < 2).sum(), policy
