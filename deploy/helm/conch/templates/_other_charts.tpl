{{- /* Names that other charts have for the same values: where both are given, the other chart's takes effect. */}}

{{- define "conch.imageName" -}}
{{ .Values.triton.image.name | default .Values.image.name }}
{{- end }}

{{- define "conch.pullSecrets" -}}
{{ .Values.triton.image.pullSecrets | default .Values.image.pullSecrets | toJson }}
{{- end }}

{{- define "conch.loadModels" -}}
{{ empty .Values.model.name | ternary .Values.server.loadModels (list .Values.model.name) | toJson }}
{{- end }}

{{- define "conch.products" -}}
{{ .Values.gpu | default .Values.accelerator.products | toJson }}
{{- end }}

{{- define "conch.repositoryPath" -}}
{{ .Values.modelRepositoryPath | default .Values.modelRepository.path }}
{{- end }}

{{- /* Tensor parallelism × pipeline parallelism. */}}
{{- define "conch.parallelism" -}}
{{- $other := .Values.model.tensorrtLlm.parallelism -}}
{{- $own := .Values.parallelism -}}
{{ mul ($other.tensor | default $own.tensor) ($other.pipeline | default $own.pipeline) }}
{{- end }}
