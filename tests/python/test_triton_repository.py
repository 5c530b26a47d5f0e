"""A repository as Triton's users have it, served as it stands."""

import json
import subprocess
import threading

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

import repositories
from repositories import Reference
from serving import BINARY, Server, counted
from wires import Grpc, Http

X = np.arange(32, dtype=np.float32).reshape(2, 16)
CONFIG = """
name: "dense"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt" } ]
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
instance_group [ { count: 2 kind: KIND_CPU } ]
version_policy { specific { versions: [ 1 ] } }
default_model_filename: "net.onnx"
"""


@pytest.fixture
def repository(tmp_path):
    repositories.write(tmp_path, "dense", repositories.affine(), "").rename(tmp_path / "dense" / "1" / "net.onnx")
    repositories.write(tmp_path, "dense", repositories.affine(seed=2), "", version="2")
    (tmp_path / "dense" / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "dense" / "labels.txt").write_text("ant\nbee\ncat\n")
    repositories.write(tmp_path, "ragged", repositories.affine(), "")
    (tmp_path / "ragged" / "config.pbtxt").write_text("max_batch_size: 8\nbatch_input { }\n")
    return tmp_path


@pytest.mark.parametrize("kind", [Http, Grpc])
def test_it_serves_and_what_it_cannot_do_is_named(repository, kind):
    with Server(repository) as server:
        wire = kind(server)
        expected = Reference(repository / "dense" / "1" / "net.onnx")(x=X)["y"]
        np.testing.assert_allclose(wire.infer("dense", ["y"], [wire.input("x", X)])["y"], expected, rtol=0, atol=1e-4)
        best = kind.module.InferRequestedOutput("y", class_count=3)
        classes = wire.client.infer("dense", [wire.input("x", X)], outputs=[best]).as_numpy("y")
        assert [[text.decode() for text in row] for row in classes] == [top(row, 3) for row in expected]
        with pytest.raises(InferenceServerException, match="ragged batches are not formed"):
            wire.infer("ragged", ["y"], [wire.input("x", X)])
        rows = {model["name"]: model for model in server.ready["models"]}
        assert (rows["dense"]["version"], rows["dense"]["max_batch"]) == ("1", 8)
        assert 'config.pbtxt becomes max_batch = 8, labels = "labels.txt", instances = 2' in server.log_tail()


def top(scores, most):
    """What Triton's classification extension makes of a row; its last class has no label."""
    best = np.argsort(-scores, kind="stable")[:most]
    return [":".join([f"{scores[at]:.6f}", str(at), *["ant", "bee", "cat"][at : at + 1]]) for at in best]


def test_migrate_explains_each_field(repository):
    command = [str(BINARY), "migrate", str(repository)]
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, timeout=60)
    models = {model["model"]: model for model in json.loads(done.stdout)["models"]}
    fields = {field["field"]: (field["line"], field["outcome"]) for field in models["dense"]["fields"]}
    assert fields["max_batch_size"] == (4, "mapped") and fields["default_model_filename"] == (10, "honoured")
    assert fields["dynamic_batching.max_queue_delay_microseconds"] == (7, "not-needed")
    assert done.returncode == 1 and "ragged/config.pbtxt:2" in models["ragged"]["error"]
    done = subprocess.run([*command, "--model", "dense", "--write"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "   4  max_batch_size = 8" in done.stdout
    written = (repository / "dense" / "model.toml").read_text()
    assert "max_batch = 8" in written and 'file = "net.onnx"' in written
    (repository / "dense" / "config.pbtxt").unlink()
    (repository / "dense" / "2" / "model.onnx").rename(repository / "dense" / "2" / "net.onnx")
    done = subprocess.run([str(BINARY), "models", str(repository / "dense")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "READY" in done.stdout, done


def test_a_model_without_an_slo_answers_late(tmp_path):
    """600 ms each, one at a time: nothing that anybody said makes the last of them an error."""
    repositories.emulated(tmp_path, "slow", "max_batch = 1\nlatency_ms = [600]\n")
    answers = []
    with Server(tmp_path, *repositories.EMULATED) as server:

        def ask():
            wire = Http(server)
            answers.append(wire.infer("slow", ["y"], [wire.input("x", X[:1, :2])])["y"])

        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        model = server.ready["models"][0]
        assert (model["slo_ms"], model["slo_is_derived"], model["late"]) == (1800, True, "answer")
        # Three of them wait longer than that, on any machine.
        assert counted(server.scrape(), "ripieno_requests_total", outcome="late") >= 2
        assert "1800 ms is derived from its profile; late requests are answered" in server.log_tail()
    assert len(answers) == 5
