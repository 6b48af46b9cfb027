{{- define "sluice.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Labels of everything; the part, such as haproxy, is in (list $ "haproxy"). */}}
{{- define "sluice.labels" -}}
{{- $ := index . 0 -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
helm.sh/chart: {{ $.Chart.Name }}-{{ $.Chart.Version }}
{{- end }}

{{- define "sluice.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: {{ $.Chart.Name }}
app.kubernetes.io/instance: {{ $.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "sluice.image" -}}
{{- $ := index . 0 -}}
{{ $.Values.images.repository }}/{{ index . 1 }}:{{ $.Values.images.tag | default $.Chart.AppVersion }}
{{- end }}

{{/* What the schema cannot say of two values. */}}
{{- define "sluice.check" -}}
{{- with .Values.redis }}{{ if not .addresses }}
{{- if .master }}{{ fail "redis.master needs redis.addresses, those of its Sentinels" }}{{ end }}
{{- if .tls.enabled }}{{ fail "redis.tls needs redis.addresses: the chart's own Redis has no TLS" }}{{ end }}
{{- if .passwords.secret }}{{ fail "redis.passwords needs redis.addresses: the chart's own Redis has no password" }}{{ end }}
{{- end }}{{ end }}
{{- if and .Values.limits.file .Values.limits.configMap }}{{ fail "limits.file and limits.configMap: want one of them" }}{{ end }}
{{- with .Values.metrics }}
{{- if and .serviceMonitor.enabled (not .enabled) }}{{ fail "metrics.serviceMonitor needs metrics.enabled" }}{{ end }}
{{- if .enabled }}
{{- $_ := required "metrics.enabled needs metrics.tlsSecret: they are served by TLS alone" .tlsSecret }}
{{- $_ := required "metrics.enabled needs metrics.tokenSecret: who reads them shows a token" .tokenSecret }}
{{- end }}
{{- end }}
{{- end }}

{{- define "sluice.limits" -}}
{{ .Values.limits.configMap | default (printf "%s-limits" (include "sluice.name" .)) }}
{{- end }}

{{/* What each pod has: spread over nodes and zones, without rights, and one user for what it shares. */}}
{{- define "sluice.pod" -}}
{{- $part := . -}}
{{- $ := index . 0 -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $.Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels:
        {{- include "sluice.selector" $part | nindent 8 }}
  {{- end }}
{{- end }}

{{- define "sluice.container" -}}
imagePullPolicy: {{ .Values.images.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* A map of variables, but for those that are empty. */}}
{{- define "sluice.env" -}}
{{- range $name, $value := . }}{{ if $value }}
- {name: {{ $name }}, value: {{ $value | toString | quote }}}
{{- end }}{{ end }}
{{- end }}

{{/* Where HAProxy and its agent meet. */}}
{{- define "sluice.sockets" -}}
SLUICE_SPOE: unix@/run/sluice/spoa.sock
SLUICE_PEER: unix@/run/sluice/peers.sock
SLUICE_RUNTIME: /run/sluice/runtime.sock
{{- end }}

{{/* A daemon's variables, in (list $ "agent"), and over them those of "env". Nothing is said where a value is empty. */}}
{{- define "sluice.daemonEnv" -}}
{{- $ := index . 0 -}}
{{- $daemon := index . 1 -}}
{{- $redis := $.Values.redis -}}
{{- $env := dict
  "SLUICE_LOG_FORMAT" "json"
  "SLUICE_REDIS" ($redis.addresses | default (list (printf "%s-redis:6379" (include "sluice.name" $))) | join ",")
  "SLUICE_REDIS_MASTER" $redis.master
  "SLUICE_REDIS_SHARDS" ($redis.shards | int)
  "SLUICE_REDIS_DB" ($redis.db | int)
  "SLUICE_REDIS_USER" (index $redis (printf "%sUser" $daemon))
  "SLUICE_REDIS_SENTINEL_USER" $redis.sentinelUser -}}
{{- if eq $daemon "agent" -}}
{{- $_ := set $env "SLUICE_DRAIN" (printf "%ds" (int $.Values.haproxy.drainSeconds)) -}}
{{- else -}}
{{- $_ := set $env "SLUICE_LIMITS" "/etc/sluice/limits/limits.yaml" -}}
{{- end -}}
{{- with $redis.passwords }}{{ if .secret -}}
{{- if index . (printf "%sKey" $daemon) }}{{ $_ := set $env "SLUICE_REDIS_PASSWORD_FILE" "/etc/sluice/redis/password" }}{{ end -}}
{{- if .sentinelKey }}{{ $_ := set $env "SLUICE_REDIS_SENTINEL_PASSWORD_FILE" "/etc/sluice/redis/sentinel-password" }}{{ end -}}
{{- end }}{{ end -}}
{{- with $redis.tls }}{{ if .enabled -}}
{{- $_ := set $env "SLUICE_REDIS_TLS" "true" -}}
{{- if .caSecret }}{{ $_ := set $env "SLUICE_REDIS_CA" "/etc/sluice/redis/ca.crt" }}{{ end -}}
{{- if .certSecret }}{{ $_ := set $env "SLUICE_REDIS_CERT" "/etc/sluice/redis/tls.crt" }}{{ $_ := set $env "SLUICE_REDIS_KEY" "/etc/sluice/redis/tls.key" }}{{ end -}}
{{- end }}{{ end -}}
{{- if $.Values.metrics.enabled -}}
{{- $_ := set $env "SLUICE_ADMIN" (eq $daemon "agent" | ternary ":9091" ":9090") -}}
{{- $_ := set $env "SLUICE_ADMIN_TOKEN_FILE" "/etc/sluice/admin/token" -}}
{{- $_ := set $env "SLUICE_ADMIN_CERT" "/etc/sluice/admin/tls.crt" -}}
{{- $_ := set $env "SLUICE_ADMIN_KEY" "/etc/sluice/admin/tls.key" -}}
{{- if eq $daemon "polygen" }}{{ $_ := set $env "SLUICE_ADVERTISE" "https://$(POD_IP):9090" }}{{ end -}}
{{- end -}}
{{- include "sluice.env" (merge (deepCopy (index $.Values $daemon).env) $env) }}
{{- end }}

{{- define "sluice.daemonMounts" -}}
{{- if include "sluice.redisFiles" . }}
- {name: redis, mountPath: /etc/sluice/redis, readOnly: true}
{{- end }}
{{- if (index . 0).Values.metrics.enabled }}
- {name: admin, mountPath: /etc/sluice/admin, readOnly: true}
{{- end }}
{{- end }}

{{/* Whole folders, and no subPath: those that are mounted by it never change. */}}
{{- define "sluice.daemonVolumes" -}}
{{- $ := index . 0 -}}
{{- with include "sluice.redisFiles" . }}
- name: redis
  projected:
    defaultMode: 0440
    sources:
      {{- . | nindent 6 }}
{{- end }}
{{- with $.Values.metrics }}{{ if .enabled }}
- name: admin
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ .tlsSecret }}
          items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
      - secret:
          name: {{ .tokenSecret }}
          items: [{key: token, path: token}]
{{- end }}{{ end }}
{{- end }}

{{/* The Secrets that a daemon's connection to Redis needs, as sources of a projected volume. */}}
{{- define "sluice.redisFiles" -}}
{{- $redis := (index . 0).Values.redis -}}
{{- $key := index $redis.passwords (printf "%sKey" (index . 1)) -}}
{{- with $redis.passwords }}{{ if and .secret (or $key .sentinelKey) -}}
- secret:
    name: {{ .secret }}
    items:
      {{- if $key }}
      - {key: {{ $key }}, path: password}
      {{- end }}
      {{- if .sentinelKey }}
      - {key: {{ .sentinelKey }}, path: sentinel-password}
      {{- end }}
{{ end }}{{ end -}}
{{- with $redis.tls }}{{ if and .enabled .caSecret -}}
- secret:
    name: {{ .caSecret }}
    items: [{key: ca.crt, path: ca.crt}]
{{ end }}{{ if and .enabled .certSecret -}}
- secret:
    name: {{ .certSecret }}
    items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
{{ end }}{{ end -}}
{{- end }}

{{/* A daemon says itself how it is: its port is the pod's own, and its image has no shell. Redis that is lost is no
reason to start one again. */}}
{{- define "sluice.alive" -}}
startupProbe:
  exec: {command: [{{ . }}, --probe, healthy]}
  periodSeconds: 1
  timeoutSeconds: 3
  failureThreshold: 30
livenessProbe:
  exec: {command: [{{ . }}, --probe, healthy]}
  periodSeconds: 10
  timeoutSeconds: 3
{{- end }}
