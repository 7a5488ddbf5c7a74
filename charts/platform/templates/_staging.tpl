{{- /*
What is said of staging beside whether it is on. charts/multus and charts/platform have this file in common, byte for byte, so
that a value which the platform takes is one that Multus' chart takes too.
*/ -}}

{{- /* chandler.choice, of (list NAME VALUE CHOICES HINT), is VALUE if it is one of CHOICES. */ -}}
{{- define "chandler.choice" -}}
{{- $value := index . 1 -}}
{{- $choices := index . 2 -}}
{{- $hint := index . 3 -}}
{{- if not (and (kindIs "string" $value) (has $value $choices)) -}}
{{- fail (printf "%s: expected %s or %s, got %s%s" (index . 0) (initial $choices | join ", ") (last $choices) (toJson $value) (ternary "" (printf "; %s" $hint) (empty $hint))) -}}
{{- end -}}
{{- $value -}}
{{- end -}}

{{- /* chandler.policy, of (list NAME VALUE HINT), is VALUE if it is a policy of chandler stage. */ -}}
{{- define "chandler.policy" -}}
{{- include "chandler.choice" (list (index . 0) (index . 1) (list "replace" "newer" "missing" "never") (index . 2)) -}}
{{- end -}}

{{- /* chandler.unknown, of (list NAME VALUE), is VALUE if it says what becomes of a file whose version is not known. */ -}}
{{- define "chandler.unknown" -}}
{{- include "chandler.choice" (list (index . 0) (index . 1) (list "replace" "keep") "leave it unset, or null, for replace") -}}
{{- end -}}

{{- /*
chandler.policies, of (list NAME VALUE), is the map of plugin names to policies in VALUE, as JSON. A null takes back what
another values file said of a name.
*/ -}}
{{- define "chandler.policies" -}}
{{- $name := index . 0 -}}
{{- $value := index . 1 -}}
{{- $policies := dict -}}
{{- if not (or (kindIs "invalid" $value) (kindIs "map" $value)) -}}
{{- fail (printf "%s: expected a map of plugins to policies such as {bridge: never}, got %s" $name (toJson $value)) -}}
{{- end -}}
{{- range $plugin, $policy := $value -}}
{{- /* As package plugin has it: no other name can be in a bundle. */ -}}
{{- if not (regexMatch "^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}$" $plugin) -}}
{{- fail (printf "%s: expected the file names of plugins such as bridge, got %s" $name (toJson $plugin)) -}}
{{- end -}}
{{- if not (kindIs "invalid" $policy) -}}
{{- $_ := set $policies $plugin (include "chandler.policy" (list (printf "%s.%s" $name $plugin) $policy "leave it out, or null, to treat it as the others")) -}}
{{- end -}}
{{- end -}}
{{- toJson $policies -}}
{{- end -}}

{{- /*
chandler.restore, of (list PREFIX VALUE STAGE BY), is whether what staging did is taken back, "true" or "false". PREFIX is what
the names of the values begin with, STAGE whether plugins are staged, and BY what decided that.
*/ -}}
{{- define "chandler.restore" -}}
{{- $prefix := index . 0 -}}
{{- $value := index . 1 -}}
{{- $restore := false -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $restore = eq "true" (include "chandler.boolean" (list (printf "%srestoreCniPlugins" $prefix) $value "")) -}}
{{- end -}}
{{- if and $restore (index . 2) -}}
{{- fail (printf "%[1]srestoreCniPlugins: is on, and %[1]sstageCniPlugins is on too (by %[2]s): what the one puts back the other replaces. To decline set %[1]sstageCniPlugins=false; to stage set %[1]srestoreCniPlugins=false" $prefix (index . 3)) -}}
{{- end -}}
{{- $restore -}}
{{- end -}}

{{- /* chandler.plugins is the names of the plugins that are in the bundle of the chart's own image, as JSON. */ -}}
{{- define "chandler.plugins" -}}
{{- list "bandwidth" "bridge" "firewall" "host-device" "host-local" "ipvlan" "macvlan" "portmap" "ptp" "sbr" "static" "tuning" "vlan" "vrf" | toJson -}}
{{- end -}}

{{- /*
chandler.remarks, of (list PREFIX POLICY POLICIES UNKNOWN), is what was asked for and comes to nothing, as a list in JSON. PREFIX is
what the names of the values begin with. None of it stops the render: an image of one's own may carry other plugins, and what is
asked for may be meant for later.
*/ -}}
{{- define "chandler.remarks" -}}
{{- $prefix := index . 0 -}}
{{- $policies := index . 2 -}}
{{- $known := include "chandler.plugins" . | fromJsonArray -}}
{{- $remarks := list -}}
{{- range $plugin := keys $policies | sortAlpha -}}
{{- if not (has $plugin $known) -}}
{{- $remarks = append $remarks (printf "%sstagePolicyFor.%s: the bundle of this chart's image has no plugin %s, so that nothing comes of it unless your own image has one. It has %s." $prefix $plugin $plugin (join ", " $known)) -}}
{{- end -}}
{{- end -}}
{{- if and (eq (index . 3) "keep") (not (has "newer" (append (values $policies) (index . 1)))) -}}
{{- $remarks = append $remarks (printf "%[1]sstageUnknown=keep: it belongs to the policy newer, which neither %[1]sstagePolicy nor %[1]sstagePolicyFor asks for, so that nothing comes of it." $prefix) -}}
{{- end -}}
{{- toJson $remarks -}}
{{- end -}}
