"""The ordinary path of docs/guide/exporting.md: what its lines write is served, and answers as the framework does."""

import re

import numpy as np
import pytest

from ripieno import Client
from serving import ROOT, Server

GUIDE = ROOT / "docs" / "guide" / "exporting.md"


def lines(heading):
    """The Python lines below a heading of the guide."""
    section = GUIDE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.search(r"```python\n(.*?)```", section, re.S).group(1)


def test_a_model_of_scikit_learn_is_served(tmp_path, monkeypatch):
    pytest.importorskip("skl2onnx", reason="pip install skl2onnx runs the guide's lines")
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    rows, kinds = load_iris(return_X_y=True)
    rows = rows.astype(np.float32)
    model = LogisticRegression(max_iter=1000).fit(rows, kinds)
    monkeypatch.chdir(tmp_path)
    exec(lines("scikit-learn"), {"model": model, "rows": rows})
    with Server(tmp_path / "iris.onnx", "--engine", "onnxruntime") as server, Client(server.http) as client:
        answer = client.infer("iris", {"X": rows[:8]})
    assert np.array_equal(answer["label"], model.predict(rows[:8]))
    assert np.allclose(answer["probabilities"], model.predict_proba(rows[:8]), atol=1e-5)
