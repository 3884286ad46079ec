{{- /* The spec of a pod. */}}

{{- define "conch.podSpec" -}}
{{- $grace := add .Values.termination.preStopSeconds .Values.server.exitTimeoutSecs .Values.termination.marginSeconds -}}
serviceAccountName: {{ include "conch.serviceAccountName" . | quote }}
automountServiceAccountToken: {{ include "conch.readsLimits" . | default "false" }}
enableServiceLinks: false
terminationGracePeriodSeconds: {{ $grace }}
{{- with include "conch.pullSecrets" . | fromJsonArray }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.accelerator.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if or .Values.modelRepository.pull .Values.extraInitContainers }}
initContainers:
  {{- if .Values.modelRepository.pull }}
  - {{- include "conch.pullContainer" . | nindent 4 }}
  {{- end }}
  {{- with .Values.extraInitContainers }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
containers:
  - {{- include "conch.serverContainer" . | nindent 4 }}
  {{- with .Values.extraContainers }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumes:
  {{- include "conch.volumes" . | trim | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "conch.tolerations" . | fromYamlArray }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "conch.affinity" . | fromYaml }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpread.topologyKeys }}
topologySpreadConstraints:
  {{- range . }}
  - maxSkew: {{ int $.Values.topologySpread.maxSkew }}
    topologyKey: {{ . | quote }}
    whenUnsatisfiable: {{ $.Values.topologySpread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "conch.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- with .Values.podSpec }}
{{ toYaml . }}
{{- end }}
{{- end }}
