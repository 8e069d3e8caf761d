{{- /* Names are made from the release, so that two releases never meet, not even in kube-system. */ -}}

{{- define "deepseekjob.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* For objects outside the release's namespace. */ -}}
{{- define "deepseekjob.clusterName" -}}
{{- printf "%s.%s" .Release.Namespace (include "deepseekjob.fullname" .) -}}
{{- end -}}

{{- define "deepseekjob.hubService" -}}
{{- printf "%s-hub" (include "deepseekjob.fullname" .) -}}
{{- end -}}

{{- define "deepseekjob.caSecret" -}}
{{- printf "%s-hub-ca" (include "deepseekjob.fullname" .) -}}
{{- end -}}

{{- define "deepseekjob.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "deepseekjob.labels" -}}
{{ include "deepseekjob.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}
