{{- /* The containers. */}}

{{- define "conch.serverContainer" -}}
{{- $environment := include "conch.environmentFrom" . | fromYamlArray -}}
name: server
image: {{ include "conch.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  {{- include "conch.args" . | nindent 2 }}
env:
  {{- include "conch.environment" . | nindent 2 }}
{{- with $environment }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  - name: http
    containerPort: 8000
  - name: grpc
    containerPort: 8001
  - name: metrics
    containerPort: 8002
startupProbe:
  {{- include "conch.probe" (list . "live" .Values.probes.startup) | nindent 2 }}
livenessProbe:
  {{- include "conch.probe" (list . "live" .Values.probes.liveness) | nindent 2 }}
readinessProbe:
  {{- include "conch.probe" (list . "ready" .Values.probes.readiness) | nindent 2 }}
{{- with int .Values.termination.preStopSeconds }}
lifecycle:
  preStop:
    sleep:
      seconds: {{ . }}
{{- end }}
{{- with include "conch.resources" . | fromYaml }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  {{- include "conch.volumeMounts" . | trim | nindent 2 }}
{{- end }}

{{- /* The init container that copies the models of an OCI image: the server's image, without a shell. */}}
{{- define "conch.pullContainer" -}}
{{- $repository := .Values.modelRepository -}}
{{- $command := concat (list "conch" "repo" "pull" "--sync") $repository.pullArgs -}}
name: models
image: {{ include "conch.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command:
  {{- append (append $command $repository.pull) (include "conch.repositoryPath" .) | toYaml | nindent 2 }}
{{- if $repository.registrySecret }}
env:
  - name: DOCKER_CONFIG
    value: /etc/conch/registry
{{- end }}
{{- with .Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  - name: models
    mountPath: {{ include "conch.repositoryPath" . | quote }}
  {{- if $repository.registrySecret }}
  - name: registry
    mountPath: /etc/conch/registry
  {{- end }}
{{- end }}

{{- define "conch.args" -}}
{{- $server := .Values.server }}
{{- $models := include "conch.loadModels" . | fromJsonArray -}}
- serve
- {{ printf "--model-repository=%s" (include "conch.repositoryPath" .) | quote }}
- --model-control-mode={{ empty $models | ternary $server.modelControlMode "explicit" }}
{{- range $models }}
- {{ printf "--load-model=%s" . | quote }}
{{- end }}
- --exit-timeout-secs={{ int $server.exitTimeoutSecs }}
- --shutdown-delay-secs=2
- --log-format={{ $server.logFormat }}
{{- if include "conch.readsLimits" . }}
- --limits-kubernetes=true
{{- end }}
{{- with .Values.incidents }}
{{- if .enabled }}
- --incident-dir=/incidents{{ if .claimName }}/$(POD_NAME){{ end }}
{{- end }}
{{- end }}
{{- if .Values.secrets.apiKeys.secretName }}
- --api-key-file=/etc/conch/api-keys/keys
{{- end }}
{{- with .Values.secrets.tls }}
{{- if and .secretName .grpc }}
- --grpc-use-ssl=true
- --grpc-server-cert=/etc/conch/tls/tls.crt
- --grpc-server-key=/etc/conch/tls/tls.key
{{- if .mutual }}
- --grpc-use-ssl-mutual=true
- --grpc-root-cert=/etc/conch/tls/ca.crt
{{- end }}
{{- end }}
{{- if and .secretName (or .http .metrics) }}
- --http-server-cert=/etc/conch/tls/tls.crt
- --http-server-key=/etc/conch/tls/tls.key
{{- if .http }}
- --http-use-ssl=true
{{- end }}
{{- if .metrics }}
- --metrics-use-ssl=true
{{- end }}
{{- end }}
{{- end }}
{{- with $server.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "conch.environment" -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- with .Values.secrets.hubToken }}
{{- if .secretName }}
{{ include "conch.secretVariable" (list "HF_TOKEN" .secretName .key) }}
{{- end }}
{{- end }}
{{- if .Values.modelRepository.registrySecret }}
- name: DOCKER_CONFIG
  value: /etc/conch/registry
{{- end }}
{{- if eq .Values.accelerator.sharing "all-devices" }}
- name: NVIDIA_VISIBLE_DEVICES
  value: all
- name: NVIDIA_DRIVER_CAPABILITIES
  value: compute,utility
{{- end }}
{{- range .Values.environment }}
- name: {{ .name | quote }}
  value: {{ .value | default "" | quote }}
{{- end }}
{{- range .Values.secretEnvironment }}
{{ include "conch.secretVariable" (list .name .secretName .key) }}
{{- end }}
{{- end }}

{{- /* A variable whose value is in a Secret. Arguments: its name, name and key of the Secret. */}}
{{- define "conch.secretVariable" -}}
- name: {{ index . 0 | quote }}
  valueFrom:
    secretKeyRef:
      name: {{ index . 1 | quote }}
      key: {{ index . 2 | quote }}
{{- end }}

{{- define "conch.environmentFrom" -}}
{{- with .Values.modelRepository.credentialsSecret }}
- secretRef:
    name: {{ . | quote }}
{{- end }}
{{- with .Values.environmentFrom }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* A probe; the kubelet verifies no certificate. Arguments: root, live or ready, its values. */}}
{{- define "conch.probe" -}}
{{- $tls := (index . 0).Values.secrets.tls -}}
httpGet:
  path: /v2/health/{{ index . 1 }}
  port: http
  {{- if and $tls.secretName $tls.http }}
  scheme: HTTPS
  {{- end }}
{{ index . 2 | toYaml }}
{{- end }}

{{- /* The appProtocol of a port. Arguments: root, name of the port in secrets.tls, protocol without TLS. */}}
{{- define "conch.appProtocol" -}}
{{- $tls := (index . 0).Values.secrets.tls -}}
{{- if and $tls.secretName (get $tls (index . 1)) }}https{{ else }}{{ index . 2 }}{{ end }}
{{- end }}
