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
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "group-hygiene.pipelineSelector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}-pipeline
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "group-hygiene.testSelector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}-test
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/*
The metadata of an object; labels and annotations of values replace none of the chart's. Call with a dict of the root and the
name; if needed with the namespace, more labels and annotations, and as `labelled` the helper of another component's selector.
*/}}
{{- define "group-hygiene.metadata" -}}
{{- $labels := include (.labelled | default "group-hygiene.selector") .root | fromYaml -}}
{{- $labels = merge $labels (include "group-hygiene.chartLabels" .root | fromYaml) (.labels | default dict) -}}
name: {{ .name | quote }}
{{- with .namespace }}
namespace: {{ . | quote }}
{{- end }}
labels: {{- merge $labels (.root.Values.commonLabels | default dict) | toYaml | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) (.root.Values.commonAnnotations | default dict) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The labels of pods. Call with a dict of the root and the labels of values, and `labelled` as above. */}}
{{- define "group-hygiene.podLabels" -}}
{{- $labels := include (.labelled | default "group-hygiene.selector") .root | fromYaml -}}
{{- $labels = set $labels "app.kubernetes.io/part-of" "group-hygiene" -}}
{{- merge $labels (.labels | default dict) (.root.Values.commonLabels | default dict) | toYaml -}}
{{- end -}}

{{- define "group-hygiene.chartLabels" -}}
app.kubernetes.io/part-of: group-hygiene
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end -}}

{{/* Call with a dict of an image's values, the default tag, and the name of the value with its repository. */}}
{{- define "group-hygiene.image" -}}
{{- $repository := required (printf "%s is missing: the name under which you pushed the image (docs/install.md)" .value) .image.repository -}}
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

{{/* Where the operator may read Secrets, as a list of {namespace, names} under `list`; names is empty for all Secrets. */}}
{{- define "group-hygiene.secretNamespaces" -}}
{{- $entries := list -}}
{{- range .Values.rbac.secretNamespaces -}}
{{- if kindIs "string" . -}}
{{- $entries = append $entries (dict "namespace" . "names" list) -}}
{{- else -}}
{{- $entries = append $entries . -}}
{{- end -}}
{{- end -}}
{{- $names := list -}}
{{- range $entries -}}
{{- if has .namespace $names -}}
{{- fail (printf "rbac.secretNamespaces has namespace %s twice: give all of its Secrets in one entry" .namespace) -}}
{{- end -}}
{{- $names = append $names .namespace -}}
{{- end -}}
{{- dict "list" $entries | toYaml -}}
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
    namespace: {{ .root.Release.Namespace | quote }}
{{- end -}}

{{/* Permissions of the operator in each namespace that it serves. It changes only the status of objects. */}}
{{- define "group-hygiene.rules" -}}
- apiGroups: [grouphygiene.io]
  resources: [kafkaconnections, grouppolicies, grouprestores, groupkeeps]
  verbs: [get, list, watch]
- apiGroups: [grouphygiene.io]
  resources: [kafkaconnections/status, grouppolicies/status, grouprestores/status, groupkeeps/status]
  verbs: [patch]
# Those that ended, after their ttlSecondsAfterFinished.
- apiGroups: [grouphygiene.io]
  resources: [grouprestores]
  verbs: [delete]
# For a repeated event the operator raises the count of the existing one: hence get and patch.
- apiGroups: [""]
  resources: [events]
  verbs: [create, get, patch]
# The uid of kube-system identifies the cluster; spec.access of a connection may select namespaces by their labels.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
{{- end -}}

{{/* Call with a list of names; empty = all Secrets. */}}
{{- define "group-hygiene.secretRules" -}}
- apiGroups: [""]
  resources: [secrets]
  {{- with . }}
  resourceNames: {{- toYaml . | nindent 4 }}
  {{- end }}
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

{{/* A CronJob's name has at most 52 characters. A hash keeps two names apart that begin alike. Call with a dict of the root and the connection's name. */}}
{{- define "group-hygiene.pipelineName" -}}
{{- $name := printf "%s-%s-%s" (include "group-hygiene.fullname" .root) (.job | default "pipeline") .connection -}}
{{- if gt (len $name) 52 -}}
{{- $name = printf "%s-%s" (regexReplaceAll "[-.]+$" (trunc 43 $name) "") (sha256sum $name | trunc 8) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/*
Fails, before anything is made, where a namespace is missing that values name. Only where a cluster answers: `helm template`
asks none. The release's own namespace is left out, as --create-namespace makes it later. Where it exists, nothing else is asked
first: an installer with rights in these namespaces alone may not read kube-system.
*/}}
{{- define "group-hygiene.requireNamespaces" -}}
{{- if or (lookup "v1" "Namespace" "" .Release.Namespace) (lookup "v1" "Namespace" "" "kube-system") -}}
{{- $named := list (dict "value" "watchNamespaces" "names" .Values.watchNamespaces) -}}
{{- range (include "group-hygiene.secretNamespaces" . | fromYaml).list -}}
{{- $named = append $named (dict "value" "rbac.secretNamespaces" "names" (list .namespace)) -}}
{{- end -}}
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
