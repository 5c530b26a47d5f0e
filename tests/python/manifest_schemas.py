"""What the manifests use of kinds that are not Kubernetes' own: schemas with the fields that are used here, and no others.

They are narrower than those of their projects: a field that is new to the manifests is added here, by hand and with a look
at its documentation, so that a misspelt one cannot slip in.
"""

TEXT = {"type": "string", "minLength": 1}
LABELS = {"type": "object", "additionalProperties": TEXT, "minProperties": 1}


def closed(required, **optional):
    """An object with these fields."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def listed(of):
    return {"type": "array", "items": of, "minItems": 1}


METADATA = closed({"name": TEXT})


def kind(api, name, spec):
    return closed({"apiVersion": {"const": api}, "kind": {"const": name}, "metadata": METADATA, "spec": spec})


def kustomization(api, name):
    target = closed({"kind": TEXT, "name": TEXT})
    return closed(
        {"apiVersion": {"const": api}, "kind": {"const": name}},
        namespace=TEXT,
        resources=listed(TEXT),
        components=listed(TEXT),
        labels=listed(closed({"pairs": LABELS}, includeTemplates={"type": "boolean"})),
        configMapGenerator=listed(
            closed(
                {"name": TEXT, "literals": listed({"type": "string", "pattern": "^[A-Z_]+=."})},
                behavior={"const": "merge"},
            )
        ),
        images=listed(closed({"name": TEXT}, newName=TEXT, newTag=TEXT)),
        patches=listed(closed({"target": target, "patch": TEXT})),
    )


MATCH = closed({"key": TEXT, "operator": {"enum": ["In", "NotIn"]}, "values": listed(TEXT)})
ENDPOINT = closed({"port": TEXT}, path=TEXT, interval={"type": "string", "pattern": "^[0-9]+(ms|s|m)$"})
POD_MONITOR = closed(
    {"selector": closed({}, matchLabels=LABELS, matchExpressions=listed(MATCH)), "podMetricsEndpoints": listed(ENDPOINT)},
    podTargetLabels=listed(TEXT),
)
SERVICE_MONITOR = closed({"selector": closed({}, matchLabels=LABELS), "endpoints": listed(ENDPOINT)})
RECORD = closed({"record": {"type": "string", "pattern": "^[a-z_:0-9]+$"}, "expr": TEXT})
ALERT = closed(
    {"alert": TEXT, "expr": TEXT, "for": {"type": "string", "pattern": "^[0-9]+(s|m|h)$"}, "labels": LABELS},
    annotations=closed({"summary": TEXT}, description=TEXT),
)
RULES = closed({"groups": listed(closed({"name": TEXT, "rules": listed({"oneOf": [RECORD, ALERT]})}))})
SECONDS = {"type": "integer", "minimum": 0}
POLICY = closed({"type": {"enum": ["Pods", "Percent"]}, "value": {"type": "integer", "minimum": 1}, "periodSeconds": SECONDS})
DIRECTION = closed(
    {"stabilizationWindowSeconds": SECONDS, "policies": listed(POLICY)}, selectPolicy={"enum": ["Max", "Min"]}
)
SCALED = closed(
    {
        "scaleTargetRef": closed({"apiVersion": TEXT, "kind": TEXT, "name": TEXT}),
        "minReplicaCount": {"type": "integer", "minimum": 1},
        "maxReplicaCount": {"type": "integer", "minimum": 1},
        "triggers": listed(
            closed(
                {
                    "type": {"const": "external"},
                    "metricType": {"const": "AverageValue"},
                    "metadata": closed({"scalerAddress": {"type": "string", "pattern": "^[a-z0-9.-]+:[0-9]+$"}}),
                }
            )
        ),
    },
    pollingInterval=SECONDS,
    advanced=closed(
        {
            "horizontalPodAutoscalerConfig": closed(
                {"behavior": closed({"scaleUp": DIRECTION, "scaleDown": DIRECTION})}
            )
        }
    ),
)
# The container is checked as one of Kubernetes' own.
RUNTIME = closed(
    {
        "supportedModelFormats": listed(closed({"name": TEXT}, version=TEXT, autoSelect={"type": "boolean"})),
        "protocolVersions": listed({"enum": ["v1", "v2", "grpc-v2"]}),
        "containers": listed({"type": "object"}),
    },
    labels=LABELS,
    volumes=listed(closed({"name": TEXT, "emptyDir": closed({"sizeLimit": TEXT})})),
)

SCHEMAS = {
    ("kustomize.config.k8s.io/v1beta1", "Kustomization"): kustomization("kustomize.config.k8s.io/v1beta1", "Kustomization"),
    ("kustomize.config.k8s.io/v1alpha1", "Component"): kustomization("kustomize.config.k8s.io/v1alpha1", "Component"),
    ("keda.sh/v1alpha1", "ScaledObject"): kind("keda.sh/v1alpha1", "ScaledObject", SCALED),
    ("monitoring.coreos.com/v1", "PodMonitor"): kind("monitoring.coreos.com/v1", "PodMonitor", POD_MONITOR),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): kind("monitoring.coreos.com/v1", "ServiceMonitor", SERVICE_MONITOR),
    ("monitoring.coreos.com/v1", "PrometheusRule"): kind("monitoring.coreos.com/v1", "PrometheusRule", RULES),
    ("serving.kserve.io/v1alpha1", "ClusterServingRuntime"): kind(
        "serving.kserve.io/v1alpha1", "ClusterServingRuntime", RUNTIME
    ),
}
