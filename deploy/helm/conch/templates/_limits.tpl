{{- /* Limits as annotations of the workload, in the form that --limits-kubernetes reads. */}}
{{- define "conch.limitAnnotations" -}}
{{- $found := dict -}}
{{- with .Values.limits -}}
{{- if not (kindIs "invalid" .maxQps) }}{{ $_ := set $found "max_qps" (int .maxQps | toString) }}{{ end -}}
{{- if not (kindIs "invalid" .maxTokensPerSecond) -}}
{{- $_ := set $found "conch.ai/max-tokens-per-second" (int .maxTokensPerSecond | toString) -}}
{{- end -}}
{{- with .entries }}{{ $_ := set $found "conch.ai/limits" (dict "limits" . | toRawJson) }}{{ end -}}
{{- if and $found .enforced }}{{ $_ := set $found "conch.ai/limits-enforced" "true" }}{{ end -}}
{{- if and $found .shared }}{{ $_ := set $found "conch.ai/limits-shared" "true" }}{{ end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end }}

{{- /* Not empty if the server follows the annotations, for which it asks the API server. */}}
{{- define "conch.readsLimits" -}}
{{ or .Values.server.limitsKubernetes (include "conch.limitAnnotations" . | fromYaml) | empty | ternary "" "true" }}
{{- end }}
