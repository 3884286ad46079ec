{{- /* The matchers of the series of a release. Both monitors take the job from the label `app`. */}}
{{- define "conch.matchers" -}}
namespace="{{ .Release.Namespace }}",job="{{ .Release.Name }}"
{{- end }}

{{- define "conch.scaleTarget" -}}
apiVersion: apps/v1
kind: {{ .Values.workload.kind }}
name: {{ .Release.Name | quote }}
{{- end }}

{{- /* The sum of a metric over the pods, each with the query of the adapter's rule. Arguments: root, its name. */}}
{{- define "conch.podMetricQuery" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $matchers := include "conch.matchers" $root -}}
{{- range ($root.Files.Get "files/adapter-rules.yaml" | fromYaml).rules.custom -}}
{{- if eq .name.as $name -}}
sum({{ .metricsQuery | replace "<<.GroupBy>>" "pod" | replace "<<.LabelMatchers>>" $matchers }})
{{- end -}}
{{- end -}}
{{- end }}

{{- /* A target as KEDA reads it: a decimal number without a unit. */}}
{{- define "conch.decimal" -}}
{{- $text := toString . -}}
{{- mulf (trimSuffix "m" $text) (hasSuffix "m" $text | ternary 0.001 1.0) }}
{{- end }}

{{- /* A trigger of KEDA. Arguments: root, query, target. */}}
{{- define "conch.prometheusTrigger" -}}
{{- $root := index . 0 -}}
{{- $keda := $root.Values.autoscaling.keda -}}
type: prometheus
metricType: AverageValue
metadata:
  serverAddress: {{ $keda.serverAddress | quote }}
  query: {{ index . 1 | quote }}
  threshold: {{ include "conch.decimal" (index . 2) | quote }}
  activationThreshold: {{ include "conch.decimal" $keda.activationThreshold | quote }}
  {{- /* No series is an error, on which the fallback keeps the replicas; without replicas it is normal. */}}
  ignoreNullValues: {{ eq (int $root.Values.autoscaling.minReplicas) 0 | quote }}
  {{- with $keda.authentication.mode }}
  authModes: {{ . }}
  {{- end }}
{{- if $keda.authentication.mode }}
authenticationRef:
  name: {{ $root.Release.Name }}-prometheus
{{- end }}
{{- end }}

{{- /*
The replicas of the workload; empty with an autoscaler, whose decision an upgrade would undo. But Kubernetes replaces a
field that Helm stops to set by its default, 1: if an earlier object had replicas, the live number is set. It is left to
the autoscaler, with an annotation, in objects that never had them, and where Helm applies on the server and the
autoscaler has changed them: then Helm no longer manages the field.
*/}}
{{- define "conch.replicas" -}}
{{- $live := lookup "apps/v1" .Values.workload.kind .Release.Namespace .Release.Name -}}
{{- if eq .Values.autoscaling.type "none" -}}
{{ int .Values.replicaCount }}
{{- else if and $live (not (dig "metadata" "annotations" "conch.ai/replicas" "" $live)) -}}
{{- $operations := list -}}
{{- $fields := list -}}
{{- range $live.metadata.managedFields -}}
{{- if hasPrefix "helm" .manager -}}
{{- $operations = append $operations .operation -}}
{{- $fields = concat $fields (dig "fieldsV1" "f:spec" dict . | keys) -}}
{{- end -}}
{{- end -}}
{{- if or (has "f:replicas" $fields) (not (has "Apply" $operations)) }}{{ int $live.spec.replicas }}{{ end -}}
{{- end -}}
{{- end }}
