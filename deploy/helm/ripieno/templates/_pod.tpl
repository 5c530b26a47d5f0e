{{/* Addresses of all schedulers. */}}
{{- define "ripieno.schedulers" -}}
{{- $all := list -}}
{{- range $at := until (int .Values.scheduler.replicas) -}}
{{- $all = append $all (printf "ripieno-scheduler-%d.ripieno-scheduler:8010" $at) -}}
{{- end -}}
{{- join "," $all -}}
{{- end -}}

{{/* The template of a role's pods: dict root, role, metrics (its port), ports, args, env, lifecycle, mounts, volumes. */}}
{{- define "ripieno.pod" -}}
{{- $own := index .root.Values .role -}}
{{- $name := printf "ripieno-%s" .role -}}
metadata:
  labels:
    app.kubernetes.io/name: {{ $name }}
    app.kubernetes.io/part-of: ripieno
    ripieno.dev/role: {{ .role }}
  annotations:
    # A changed flag restarts the role.
    checksum/config: {{ include (print .root.Template.BasePath "/config.yaml") .root | sha256sum }}
spec:
  automountServiceAccountToken: false
  # Variables that Kubernetes makes of services would begin with RIPIENO_, as our own do.
  enableServiceLinks: false
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets: {{ toJson . }}
  {{- end }}
  {{- with .root.Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $own.nodeSelector }}
  nodeSelector: {{ toJson . }}
  {{- end }}
  {{- with $own.tolerations }}
  tolerations: {{ toJson . }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    seccompProfile: { type: RuntimeDefault }
  terminationGracePeriodSeconds: 45
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: { app.kubernetes.io/name: {{ $name }} }
  containers:
    - name: {{ .role }}
      image: {{ .root.Values.image }}
      {{- with .root.Values.imagePullPolicy }}
      imagePullPolicy: {{ . }}
      {{- end }}
      args: {{ concat (list .role) .args $own.args | toJson }}
      {{- with .env }}
      env: {{ toJson . }}
      {{- end }}
      envFrom:
        - configMapRef: { name: ripieno }
      ports:
        {{- range $port, $number := .ports }}
        - { name: {{ $port }}, containerPort: {{ $number }} }
        {{- end }}
      startupProbe:
        httpGet: { path: /v2/health/live, port: metrics }
        periodSeconds: 2
        failureThreshold: 30
      readinessProbe:
        httpGet: { path: /v2/health/ready, port: metrics }
        periodSeconds: 2
      livenessProbe:
        httpGet: { path: /v2/health/live, port: metrics }
        periodSeconds: 10
        failureThreshold: 6
      {{- with .lifecycle }}
      lifecycle: {{ toJson . }}
      {{- end }}
      resources: {{ toJson $own.resources }}
      {{- with .mounts }}
      volumeMounts: {{ toJson . }}
      {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: { drop: [ALL] }
  {{- with .volumes }}
  volumes: {{ toJson . }}
  {{- end }}
{{- end -}}
