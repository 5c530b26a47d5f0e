"""The demo models in cells: the committed files give the answers that are committed as samples."""

import json

import numpy as np
import pytest

import repositories
from ripieno_export.reference import Reference
from serving import ROOT

END = 3


def read(samples, output):
    """An output as a person reads it; models/README.md says how."""
    values = output.reshape(-1).tolist()
    if samples["reads"] == "text":
        return bytes(values[: values.index(END)]).decode("ascii")
    return samples["labels"][values[0]] if samples["reads"] == "label" else str(values[0])


@pytest.mark.parametrize(("model", "kind"), [("dates", "text"), ("arithmetic", "number"), ("sentiment", "label")])
def test_samples(model, kind):
    samples = json.loads((ROOT / "models" / "samples" / f"{model}.json").read_text())
    assert samples["reads"] == kind
    reference = Reference(repositories.DEMO / model)
    wrong = []
    for row in samples["rows"]:
        request = {i["name"]: np.array(i["data"], np.int64).reshape(i["shape"]) for i in row["inputs"]}
        said = read(samples, reference(**request)[samples["output"]])
        if said != row["answer"]:
            wrong.append((row["text"], said, row["answer"]))
    assert len(wrong) <= 1, wrong
