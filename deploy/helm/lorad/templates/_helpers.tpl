{{- define "lorad.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "lorad.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The pause before a stop (5 s), the drain, 2 s for the last error events, and the engine's end. */}}
{{- define "lorad.grace" -}}
{{ add 30 (ceil (float64 (.Values.options.LORAD_DRAIN_SECONDS | default "30"))) }}
{{- end }}
