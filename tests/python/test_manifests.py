"""The manifests under deploy/: every field is one that there is, by strict schemas and without a cluster.

Whether they fit the program is for crates/cli/src/manifests.rs. Where kubectl is installed, what kustomize makes of the
overlays is checked, too.
"""

import copy
import json
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


CHART = DEPLOY.parent / "helm" / "ripieno"


def rendered(*command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True, timeout=60)
    return objects(done.stdout)


def comparable(read):
    """An object without what names the tool that made it: labels of a part, hashes, and the order of ports and rules."""
    if isinstance(read, dict):
        kept = {key: comparable(value) for key, value in read.items() if key not in ("annotations", "app.kubernetes.io/part-of")}
        return {key: value for key, value in kept.items() if value != {}}
    if isinstance(read, list):
        every = [comparable(value) for value in read]
        return sorted(every, key=lambda value: json.dumps(value, sort_keys=True)) if all(isinstance(value, dict) for value in every) else every
    return "ripieno" if isinstance(read, str) and read.startswith("ripieno-") and len(read.split("-")[-1]) == 10 else read


@pytest.mark.skipif(not shutil.which("helm"), reason="helm is not installed")
def test_the_chart_makes_what_kustomize_makes_of_the_base():
    chart = {(read["kind"], read["metadata"]["name"]): read for read in rendered("helm", "template", "any", CHART)}
    for read in chart.values():
        check(read)
    assert len(chart) == 14
    files = [path for path in CHART.rglob("*") if path.is_file()]
    assert sum(len(path.read_text().splitlines()) for path in files) < 300
    if shutil.which("kubectl"):
        base = rendered("kubectl", "kustomize", DEPLOY / "base")
        base = {(read["kind"], comparable(read["metadata"]["name"])): comparable(read) for read in base}
        assert {key: comparable(read) for key, read in chart.items()} == base
    flags = ["--set", "backend.replicas=null,networkPolicy=false,priorityClassName=high,env.RIPIENO_MAX_LIVE=500"]
    changed = {(read["kind"], read["metadata"]["name"]): read for read in rendered("helm", "template", "any", CHART, *flags)}
    for read in changed.values():
        check(read)
    backend = changed["StatefulSet", "ripieno-backend"]["spec"]
    assert "replicas" not in backend and backend["template"]["spec"]["priorityClassName"] == "high"
    assert changed["ConfigMap", "ripieno"]["data"]["RIPIENO_MAX_LIVE"] == "500"
    assert not any(kind == "NetworkPolicy" for kind, _ in changed)
