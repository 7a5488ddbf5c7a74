{{- /*
multus.upstream, of (dict "root" $ "out" DICT), reads upstream's manifest into DICT: "objects", its documents in their order,
and "byName", the same under KIND/NAME. It stops the render if anything that files/relied-on.yaml names is missing.
*/ -}}
{{- define "multus.upstream" -}}
{{- $root := .root -}}
{{- $out := .out -}}
{{- $objects := list -}}
{{- $byName := dict -}}
{{- range $i, $text := regexSplit "(?m)^---(?:[ \t].*)?$" ($root.Files.Get "upstream/multus-daemonset-thick.yml") -1 -}}
{{- $object := fromYaml $text -}}
{{- if and $object (not (dig "metadata" "name" "" $object)) -}}
{{- fail (printf "upstream's manifest: document %d is no object with a name: %s" $i (toJson $object)) -}}
{{- end -}}
{{- if $object -}}
{{- $objects = append $objects $object -}}
{{- $_ := set $byName (printf "%s/%s" $object.kind $object.metadata.name) $object -}}
{{- end -}}
{{- end -}}
{{- $_ := set $out "objects" $objects -}}
{{- $_ := set $out "byName" $byName -}}
{{- range $root.Files.Get "files/relied-on.yaml" | fromYamlArray -}}
{{- $found := dict "ok" false -}}
{{- if hasKey $byName .object -}}
{{- include "multus.find" (dict "at" (get $byName .object) "path" .path "out" $found) -}}
{{- end -}}
{{- if .absent -}}
{{- if $found.ok -}}
{{- fail (printf "upstream's manifest: %s is new; the chart cannot have it (%s)" .what .for) -}}
{{- end -}}
{{- else if not $found.ok -}}
{{- fail (printf "upstream's manifest: %s is missing; the chart relies on it (%s)" .what .for) -}}
{{- else if .only -}}
{{- $entry := . -}}
{{- range $found.value -}}
{{- if not (has .name $entry.only) -}}
{{- fail (printf "upstream's manifest: %s %s is new; the chart does not know it (%s)" $entry.what .name $entry.for) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* multus.find, of (dict "at" OBJECT "path" STEPS "out" DICT), sets "ok" in DICT if the steps, as
files/relied-on.yaml spells them, lead somewhere, and "value" to what is there. */ -}}
{{- define "multus.find" -}}
{{- $at := .at -}}
{{- $ok := true -}}
{{- range $step := .path -}}
{{- if $ok -}}
{{- $ok = false -}}
{{- if eq (toString $step) "@json" -}}
{{- if kindIs "string" $at -}}
{{- $at = fromJson $at -}}
{{- $ok = not (hasKey $at "Error") -}}
{{- end -}}
{{- else if kindIs "map" $step -}}
{{- $next := dict -}}
{{- if kindIs "slice" $at -}}
{{- range $item := $at -}}
{{- $equal := true -}}
{{- range $key, $want := $step -}}
{{- if eq $key "@item" -}}
{{- $equal = and $equal (eq (toString $item) (toString $want)) -}}
{{- else -}}
{{- $equal = and $equal (kindIs "map" $item) (eq (toString (get (kindIs "map" $item | ternary $item dict) $key)) (toString $want)) -}}
{{- end -}}
{{- end -}}
{{- if and $equal (not (hasKey $next "item")) -}}{{- $_ := set $next "item" $item -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $ok = hasKey $next "item" -}}
{{- $at = $next.item -}}
{{- else if kindIs "map" $at -}}
{{- $ok = hasKey $at $step -}}
{{- $at = get $at $step -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $_ := set .out "ok" $ok -}}
{{- $_ := set .out "value" $at -}}
{{- end -}}
