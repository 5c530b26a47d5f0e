"""The manifests under deploy/: every field is one that there is, by strict schemas and without a cluster.

Whether they fit the program is for crates/cli/src/manifests.rs. Where kubectl is installed, what kustomize makes of the
overlays is checked, too.
"""

import copy
import pathlib
import shutil
import subprocess

import jsonschema
import kubernetes_validate
import pytest
import yaml
from manifest_schemas import SCHEMAS

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
# The least that has all fields that are used; older clusters drop `tolerance` of an autoscaler.
VERSION = "1.37"


def objects(text):
    return [read for read in yaml.safe_load_all(text) if read is not None]


def found():
    return [
        pytest.param(read, id=f"{path.relative_to(DEPLOY)}:{read['kind']}")
        for path in sorted(DEPLOY.rglob("*.yaml"))
        for read in objects(path.read_text())
    ]


def check(read):
    """Fails for a field that there is not, or that is not what it should be."""
    schema = SCHEMAS.get((read["apiVersion"], read["kind"]))
    if schema is None:
        kubernetes_validate.validate(read, VERSION, strict=True)
        return
    jsonschema.Draft202012Validator(schema).validate(read)
    for container in read.get("spec", {}).get("containers", []):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any"}, "spec": {"containers": [container]}}
        kubernetes_validate.validate(pod, VERSION, strict=True)


@pytest.mark.parametrize("read", found())
def test_a_manifest_says_what_there_is_to_say(read):
    check(read)


def misspelt(read):
    """Copies of an object, each with one key misspelt, but for those that anybody may choose."""
    free = {"pairs", "labels", "matchLabels", "annotations", "selector", "requests", "limits", "podSelector"}

    def walk(value, path):
        if isinstance(value, dict):
            for key, below in value.items():
                yield path, key
                if key not in free:
                    yield from walk(below, [*path, key])
        elif isinstance(value, list):
            for at, below in enumerate(value):
                yield from walk(below, [*path, at])

    for path, key in walk(read, []):
        wrong = copy.deepcopy(read)
        at = wrong
        for step in path:
            at = at[step]
        at[key + "x"] = at.pop(key)
        yield [*path, key], wrong


@pytest.mark.parametrize("read", found())
def test_each_misspelt_field_is_found(read):
    """So that the schemas are known to be strict at every place that is used."""
    for path, wrong in misspelt(read):
        if path in (["apiVersion"], ["kind"]):
            continue
        with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
            check(wrong)
            pytest.fail(f"{path} may be misspelt")


def built(folder):
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    made = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return objects(made.stdout)


def overlays():
    return [str(path.parent) for path in sorted(DEPLOY.glob("overlays/*/kustomization.yaml"))] + [str(DEPLOY / "kserve")]


@pytest.mark.parametrize("folder", overlays())
def test_what_kustomize_makes_is_valid(folder):
    for read in built(folder):
        namespace = read["metadata"].pop("namespace", None)
        of_cluster = read["kind"] in ("ClusterServingRuntime", "PriorityClass")
        assert (namespace is None) == of_cluster, read["metadata"]["name"]
        if read["kind"] in ("PodMonitor", "ServiceMonitor", "PrometheusRule", "ScaledObject"):
            read["metadata"].pop("labels", None)
        check(read)


def test_resources_are_there():
    """Without kubectl, too."""
    for path in sorted(DEPLOY.rglob("kustomization.yaml")):
        read = yaml.safe_load(path.read_text())
        for named in read.get("resources", []) + read.get("components", []):
            assert (path.parent / named).exists(), f"{path}: {named}"
        here = {other.name for other in path.parent.glob("*.yaml")} - {"kustomization.yaml"}
        assert here <= set(read.get("resources", [])), f"{path}: a file that is not named"
