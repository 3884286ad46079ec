{{- /* Volumes of the pods and their mounts. */}}

{{- /* The source of the volume of models; {} if the image or the server has them. */}}
{{- define "conch.modelVolume" -}}
{{- with .Values.modelRepository }}
{{- if .claimName -}}
persistentVolumeClaim:
  claimName: {{ .claimName | quote }}
  readOnly: true
{{- else if .image -}}
image:
  reference: {{ .image | quote }}
  pullPolicy: {{ $.Values.image.pullPolicy }}
{{- else if .pull -}}
emptyDir:
  sizeLimit: {{ .size | quote }}
{{- else -}}
{{ toYaml .volume }}
{{- end }}
{{- end }}
{{- end }}

{{- define "conch.volumes" -}}
{{- $secrets := .Values.secrets }}
{{- $repository := .Values.modelRepository }}
{{- if ne .Values.accelerator.sharing "mps" }}
- name: shared-memory
  emptyDir:
    medium: Memory
    sizeLimit: {{ .Values.sharedMemory.size | quote }}
{{- end }}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.temporaryFiles.size | quote }}
{{- with .Values.cache }}
{{- if .claimName }}
- name: cache
  persistentVolumeClaim:
    claimName: {{ .claimName | quote }}
{{- else if eq $.Values.workload.kind "Deployment" }}
- name: cache
  emptyDir:
    sizeLimit: {{ .size | quote }}
{{- end }}
{{- end }}
{{- with .Values.incidents }}
{{- if .enabled }}
- name: incidents
  {{- if .claimName }}
  persistentVolumeClaim:
    claimName: {{ .claimName | quote }}
  {{- else }}
  emptyDir:
    sizeLimit: {{ .size | quote }}
  {{- end }}
{{- end }}
{{- end }}
{{- with include "conch.modelVolume" . | fromYaml }}
- name: models
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $secrets.apiKeys }}
{{- if .secretName }}
- name: api-keys
  secret:
    secretName: {{ .secretName | quote }}
    defaultMode: 288 # 0440
    items:
      - key: {{ .key | quote }}
        path: keys
{{- end }}
{{- end }}
{{- if $secrets.tls.secretName }}
- name: tls
  secret:
    secretName: {{ $secrets.tls.secretName | quote }}
    defaultMode: 288 # 0440
{{- end }}
{{- if $repository.registrySecret }}
- name: registry
  secret:
    secretName: {{ $repository.registrySecret | quote }}
    defaultMode: 288 # 0440
    items:
      - key: .dockerconfigjson
        path: config.json
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "conch.volumeMounts" -}}
{{- $repository := .Values.modelRepository }}
{{- if ne .Values.accelerator.sharing "mps" }}
- name: shared-memory
  mountPath: /dev/shm
{{- end }}
- name: tmp
  mountPath: /tmp
- name: cache
  mountPath: /cache
{{- if .Values.incidents.enabled }}
- name: incidents
  mountPath: /incidents
{{- end }}
{{- if include "conch.modelVolume" . | fromYaml }}
- name: models
  mountPath: {{ include "conch.repositoryPath" . | quote }}
  readOnly: true
  {{- with $repository.subPath }}
  subPath: {{ . | quote }}
  {{- end }}
{{- end }}
{{- if .Values.secrets.apiKeys.secretName }}
- name: api-keys
  mountPath: /etc/conch/api-keys
  readOnly: true
{{- end }}
{{- if .Values.secrets.tls.secretName }}
- name: tls
  mountPath: /etc/conch/tls
  readOnly: true
{{- end }}
{{- if $repository.registrySecret }}
- name: registry
  mountPath: /etc/conch/registry
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
