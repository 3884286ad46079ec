{{- /* The labels by which Services, monitors and the workload find the pods of the server. */}}
{{- define "conch.selector" -}}
app: {{ .Release.Name | quote }}
app.kubernetes.io/component: server
{{- end }}

{{- /* The labels of an object. Arguments: root context, component. */}}
{{- define "conch.labels" -}}
{{- $root := index . 0 -}}
app: {{ $root.Release.Name | quote }}
app.kubernetes.io/name: conch
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/version: {{ $root.Chart.Version | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{- end }}

{{- /* The metadata of an object. Arguments: root context, component, suffix of the name, more labels, annotations. */}}
{{- define "conch.metadata" -}}
{{- $root := index . 0 -}}
name: {{ print $root.Release.Name (index . 2) | quote }}
namespace: {{ $root.Release.Namespace | quote }}
labels:
  {{- merge (dict) (index . 3) (include "conch.labels" . | fromYaml) | toYaml | nindent 2 }}
{{- with index . 4 }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "conch.image" -}}
{{- $image := .Values.image -}}
{{- $digest := empty $image.digest | ternary "" (printf "%s@%s" $image.repository $image.digest) -}}
{{- $tagged := printf "%s:%s" $image.repository ($image.tag | default .Chart.Version) -}}
{{ include "conch.imageName" . | default $digest | default $tagged }}
{{- end }}

{{- define "conch.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (ternary .Release.Name "default" .Values.serviceAccount.create) }}
{{- end }}

{{- /* Not empty if the cluster is of a version, such as 1.30, or later. Arguments: root context, version. */}}
{{- define "conch.since" -}}
{{ semverCompare (printf ">=%s" (index . 1)) (index . 0).Values.kubernetesVersion | ternary "true" "" }}
{{- end }}
