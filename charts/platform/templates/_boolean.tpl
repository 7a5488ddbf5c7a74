{{- /*
chandler.boolean, of (list NAME VALUE HINT), is "true" or "false". It takes every spelling that people and tools use for a
boolean: true, yes, on, 1 and false, no, off, 0, in any case, as boolean, string or number. Anything else stops the render
and quotes the value: read as false, it would turn what somebody asked for into its opposite.
An absent value is the caller's to judge. charts/multus and charts/platform have this file in common, byte for byte.
*/ -}}
{{- define "chandler.boolean" -}}
{{- $name := index . 0 -}}
{{- $value := index . 1 -}}
{{- $hint := index . 2 -}}
{{- $spelling := $value | toString | lower -}}
{{- if has $spelling (list "true" "yes" "on" "1") -}}
true
{{- else if has $spelling (list "false" "no" "off" "0") -}}
false
{{- else -}}
{{- $shown := $value | toString -}}
{{- if or (kindIs "map" $value) (kindIs "slice" $value) -}}{{- $shown = toJson $value -}}{{- end -}}
{{- fail (printf "%s: expected a boolean, got %q%s" $name $shown (ternary "" (printf "; %s" $hint) (empty $hint))) -}}
{{- end -}}
{{- end -}}
