{{- define "group-hygiene.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "group-hygiene.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "group-hygiene.commonLabels" -}}
app.kubernetes.io/part-of: group-hygiene
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end -}}

{{- define "group-hygiene.labels" -}}
{{ include "group-hygiene.selector" . }}
{{ include "group-hygiene.commonLabels" . }}
{{- end -}}

{{/* Call with a dict of an image's values, the default tag, and what its repository is called among the values. */}}
{{- define "group-hygiene.image" -}}
{{- $repository := required (printf "%s is missing: the name under which you pushed the image (docs/images.md)" .value) .image.repository -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .tag .image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "group-hygiene.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "group-hygiene.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is missing: the account that there is, as serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The namespaces in which the operator may read Secrets, as a list under `list`. */}}
{{- define "group-hygiene.secretNamespaces" -}}
{{- $own := list -}}
{{- if or (not .Values.watchNamespaces) (has .Release.Namespace .Values.watchNamespaces) -}}
{{- $own = list .Release.Namespace -}}
{{- end -}}
{{- dict "list" (concat $own .Values.rbac.secretNamespaces | uniq) | toYaml -}}
{{- end -}}

{{/* A binding's reference to a role of its own name; call with a dict of the root, the kind and the name. */}}
{{- define "group-hygiene.binds" -}}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ include "group-hygiene.serviceAccount" .root }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}

{{/* What the operator may do in each namespace that it serves. It may not change anybody's objects: only their status. */}}
{{- define "group-hygiene.rules" -}}
- apiGroups: [grouphygiene.io]
  resources: [kafkaconnections, grouppolicies, grouprestores]
  verbs: [get, list, watch]
- apiGroups: [grouphygiene.io]
  resources: [kafkaconnections/status, grouppolicies/status, grouprestores/status]
  verbs: [patch]
# Repeated events are counted up instead of written again: hence get and patch.
- apiGroups: [""]
  resources: [events]
  verbs: [create, get, patch]
# The uid of kube-system names the cluster; labels of namespaces decide where spec.access of a connection selects by them.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
{{- end -}}

{{- define "group-hygiene.secretRules" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end -}}

{{- define "group-hygiene.egress" -}}
- {{ with .to }}to: {{- toYaml . | nindent 4 }}
  {{ end }}ports:
    {{- $protocols := default (list "TCP") .protocols }}
    {{- range $port := .ports }}
    {{- range $protocols }}
    - {protocol: {{ . }}, port: {{ $port }}}
    {{- end }}
    {{- end }}
{{- end -}}

{{- define "group-hygiene.pipelineLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}-pipeline
app.kubernetes.io/instance: {{ .Release.Name }}
{{ include "group-hygiene.commonLabels" . }}
{{- end -}}

{{/*
Fails, before anything is made, where a namespace is missing that values name. Only where a cluster answers: `helm template`
asks none. The release's own namespace is left out, as --create-namespace makes it later. Where it exists, nothing else is asked
first: an installer with rights in these namespaces alone may not read kube-system.
*/}}
{{- define "group-hygiene.requireNamespaces" -}}
{{- if or (lookup "v1" "Namespace" "" .Release.Namespace) (lookup "v1" "Namespace" "" "kube-system") -}}
{{- $named := list (dict "value" "watchNamespaces" "names" .Values.watchNamespaces) (dict "value" "rbac.secretNamespaces" "names" .Values.rbac.secretNamespaces) -}}
{{- if .Values.pipeline.enabled -}}
{{- range .Values.pipeline.connections -}}
{{- $named = append $named (dict "value" "pipeline.connections" "names" (list .namespace)) -}}
{{- end -}}
{{- end -}}
{{- $missing := list -}}
{{- range $each := $named -}}
{{- range $each.names -}}
{{- if not (or (eq . $.Release.Namespace) (lookup "v1" "Namespace" "" .)) -}}
{{- $missing = append $missing (printf "%s (of %s)" . $each.value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $missing -}}
{{- fail (printf "these namespaces do not exist, create them first: %s" (join ", " ($missing | uniq))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
