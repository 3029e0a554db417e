{{- define "kvasir.name" -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- end }}

{{- define "kvasir.labels" -}}
app.kubernetes.io/name: kvasir
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "kvasir.metadata" -}}
name: {{ .name | quote }}
labels:
  {{- include "kvasir.labels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end }}

{{- define "kvasir.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Variables of one program for NATS. */}}
{{- define "kvasir.natsEnv" -}}
- {name: {{ .prefix }}_NATS_URL, value: {{ include "kvasir.nats" .root | quote }}}
{{- if .delivers }}
- {name: {{ .prefix }}_NATS_DELIVERY, value: jetstream}
{{- end }}
{{- if .root.Values.nats.credentials.secret }}
- {name: {{ .prefix }}_NATS_CREDENTIALS, value: /etc/kvasir/nats/credentials}
{{- end }}
{{- end }}

{{- /* The key of the engines' APIs: its file, and the parts of a container and of a pod that provide it. */}}
{{- define "kvasir.engineKeyFile" -}}
/etc/kvasir/engine-key/key
{{- end }}
{{- define "kvasir.engineKeyMount" -}}
{{- if .Values.engineKey.secret }}
- {name: engine-key, mountPath: /etc/kvasir/engine-key, readOnly: true}
{{- end }}
{{- end }}
{{- define "kvasir.engineKeyVolume" -}}
{{- if .Values.engineKey.secret }}
- {name: engine-key, secret: {secretName: {{ .Values.engineKey.secret | quote }}, defaultMode: 288}}
{{- end }}
{{- end }}

{{- /* Value of --engines-from, for the values `of` of a part, and the service of its engines. */}}
{{- define "kvasir.engineList" -}}
{{ .of.discovery }}:{{ .service }}:{{ int .of.enginePort }}
{{- if .root.Values.engineKey.secret }},key-file={{ include "kvasir.engineKeyFile" . }}{{ end }}
{{- end }}

{{- /* The addresses of the engines' pods. */}}
{{- define "kvasir.engineService" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "kvasir.metadata" (dict "root" .root "component" .component "name" .service) | nindent 2 }}
spec:
  clusterIP: None
  # An engine keeps its blocks while it is not ready for a moment.
  publishNotReadyAddresses: true
  selector: {{- toYaml .selector | nindent 4 }}
  ports:
    - {name: http, port: {{ .of.enginePort }}}
{{- end }}

{{- /* An account that sees which pods are engines: see --engines-from. */}}
{{- define "kvasir.engineRole" -}}
{{- $metadata := dict "root" .root "component" .component "name" .account }}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "kvasir.metadata" $metadata | nindent 2 }}
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "kvasir.metadata" $metadata | nindent 2 }}
rules:
  - {apiGroups: [""], resources: [services], resourceNames: [{{ .service | quote }}], verbs: [list, watch]}
  - {apiGroups: [""], resources: [pods], verbs: [list, watch]}
  - {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- include "kvasir.metadata" $metadata | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ .account | quote }}}
subjects:
  - {kind: ServiceAccount, name: {{ .account | quote }}, namespace: {{ .root.Release.Namespace | quote }}}
{{- end }}

{{- define "kvasir.scheme" -}}{{ ternary "https" "http" (ne .Values.tls.secret "") }}{{- end }}

{{- define "kvasir.nats" -}}
{{- if .Values.nats.url }}{{ .Values.nats.url }}{{ else if .Values.nats.enabled }}nats://{{ include "kvasir.name" . }}-nats:4222{{ end }}
{{- end }}

{{- /* Replicas of one shard, separated by commas. $(POD_NAMESPACE) is the variable of kvasir.namespaceEnv: wildcards of
certificates cover names with at least three parts. */}}
{{- define "kvasir.replicas" -}}
{{- $name := printf "%s-index-%d" (include "kvasir.name" .root) (int .shard) }}
{{- $scheme := include "kvasir.scheme" .root }}
{{- range $replica := until (int .root.Values.index.replicas) }}
{{- if $replica }},{{ end }}{{ $scheme }}://{{ $name }}-{{ $replica }}.{{ $name }}.$(POD_NAMESPACE).svc:50051
{{- end }}
{{- end }}

{{- /* All index servers: shards separated by semicolons. */}}
{{- define "kvasir.indexers" -}}
{{- range $shard := until (int .Values.index.shards) }}
{{- if $shard }};{{ end }}{{ include "kvasir.replicas" (dict "root" $ "shard" $shard) }}
{{- end }}
{{- end }}

{{- define "kvasir.namespaceEnv" -}}
- {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
{{- end }}

{{- /* Variables of one program for TLS, identities, tokens and traces. */}}
{{- define "kvasir.commonEnv" -}}
{{- if and .root.Values.tls.clients (not .root.Values.tls.secret) }}
{{- fail "tls.clients needs tls.secret" }}
{{- end }}
{{- if ne (empty .root.Values.identities.secret) (empty .root.Values.token.secret) }}
{{- fail "identities.secret and token.secret need each other: by the token, the programs identify themselves to each other" }}
{{- end }}
{{- if .root.Values.tls.secret }}
- {name: {{ .prefix }}_INSECURE, value: "false"}
- {name: {{ .prefix }}_TLS_CERT, value: /etc/kvasir/tls/tls.crt}
- {name: {{ .prefix }}_TLS_KEY, value: /etc/kvasir/tls/tls.key}
- {name: {{ .prefix }}_TLS_CA, value: /etc/kvasir/tls/ca.crt}
{{- if and .root.Values.tls.clients (not .public) }}
- {name: {{ .prefix }}_TLS_CLIENT_CA, value: /etc/kvasir/tls/ca.crt}
{{- end }}
{{- end }}
{{- if .root.Values.identities.secret }}
- {name: {{ .prefix }}_IDENTITIES, value: /etc/kvasir/identities/identities.toml}
{{- end }}
{{- if .root.Values.token.secret }}
- {name: {{ .prefix }}_TOKEN_FILE, value: /etc/kvasir/token/token}
{{- end }}
{{- with .root.Values.tracing }}
{{- if .endpoint }}
- {name: {{ $.prefix }}_OTLP_ENDPOINT, value: {{ .endpoint | quote }}}
- {name: OTEL_TRACES_SAMPLER, value: parentbased_traceidratio}
- {name: OTEL_TRACES_SAMPLER_ARG, value: {{ .ratio | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "kvasir.securityMounts" -}}
{{- if .Values.nats.credentials.secret }}
- {name: nats, mountPath: /etc/kvasir/nats, readOnly: true}
{{- end }}
{{- if .Values.tls.secret }}
- {name: tls, mountPath: /etc/kvasir/tls, readOnly: true}
{{- end }}
{{- if .Values.identities.secret }}
- {name: identities, mountPath: /etc/kvasir/identities, readOnly: true}
{{- end }}
{{- if .Values.token.secret }}
- {name: token, mountPath: /etc/kvasir/token, readOnly: true}
{{- end }}
{{- end }}

{{- define "kvasir.securityVolumes" -}}
{{- if .Values.nats.credentials.secret }}
- {name: nats, secret: {secretName: {{ .Values.nats.credentials.secret | quote }}, defaultMode: 288}}
{{- end }}
{{- if .Values.tls.secret }}
- {name: tls, secret: {secretName: {{ .Values.tls.secret | quote }}, defaultMode: 288}}
{{- end }}
{{- if .Values.identities.secret }}
- {name: identities, secret: {secretName: {{ .Values.identities.secret | quote }}, defaultMode: 288}}
{{- end }}
{{- if .Values.token.secret }}
- {name: token, secret: {secretName: {{ .Values.token.secret | quote }}, defaultMode: 288}}
{{- end }}
{{- end }}

{{- define "kvasir.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Parts of each pod of ours. */}}
{{- define "kvasir.pod" -}}
automountServiceAccountToken: false
{{ include "kvasir.podSecurity" . }}
{{- end }}

{{- /* The same of a pod that watches engines with an account. */}}
{{- define "kvasir.watchingPod" -}}
serviceAccountName: {{ .account | quote }}
automountServiceAccountToken: true
{{ include "kvasir.podSecurity" .root }}
{{- end }}

{{- define "kvasir.podSecurity" -}}
{{- include "kvasir.pullSecrets" . }}
securityContext: {runAsNonRoot: true, runAsUser: 65532, fsGroup: 65532, seccompProfile: {type: RuntimeDefault}}
{{- end }}

{{- define "kvasir.container" -}}
image: {{ include "kvasir.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}

{{- define "kvasir.probes" -}}
{{- $scheme := include "kvasir.scheme" . | upper }}
readinessProbe:
  httpGet: {path: /readyz, port: side, scheme: {{ $scheme }}}
  periodSeconds: 5
livenessProbe:
  httpGet: {path: /livez, port: side, scheme: {{ $scheme }}}
  periodSeconds: 10
  failureThreshold: 6
{{- end }}

{{- /* For programs that serve clients: time for running requests, after load balancers have stopped sending new ones. */}}
{{- define "kvasir.drain" -}}
lifecycle: {preStop: {exec: {command: [sleep, "5"]}}}
{{- end }}

{{- define "kvasir.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: {matchLabels: {{ .labels | toJson }}}
{{- end }}
