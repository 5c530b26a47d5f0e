"""Models of `tests/models` that are served without a model.toml: one for each way in which a file may be awkward."""

import subprocess
import sys

from serving import ROOT

AWKWARD = [
    "detector",  # sizes are multiples of 16
    "unet",  # both sizes open, many refused
    "bytes_to_classes",  # bytes, colours last
    "text_reader",  # one open size
    "waveform",  # too short a signal leaves nothing
    "bert_modern",  # small INT64 constants, weights in a file of their own
    "gru_tagger",  # the built-in engine lacks a part of it
    "scaled_classifier",  # operators of ai.onnx.ml, a label without a second dimension
    "batch_of_one",
    "recommender",  # an input that is one number a row
]


def test_awkward_models_serve_at_the_first_try_and_answer_as_onnxruntime_does():
    only = [flag for name in AWKWARD for flag in ("--only", name)]
    command = [sys.executable, str(ROOT / "tests/models"), "--engine", "auto", "--least", str(len(AWKWARD)), *only]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
