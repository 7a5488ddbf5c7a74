{{- /* platform.package, of (dict "root" $ "name" NAME "variant" VARIANT "components" DICT), is a Package, or nothing if it is disabled. */ -}}
{{- define "platform.package" -}}
{{- $bundles := .root.Values.bundles | default dict -}}
{{- if not (has .name ($bundles.disabledPackages | default list)) -}}
{{- $spec := dict "variant" (.variant | default "default") -}}
{{- if .components -}}{{- $_ := set $spec "components" .components -}}{{- end -}}
{{- $package := dict
      "apiVersion" "cozystack.io/v1alpha1"
      "kind" "Package"
      "metadata" (dict "name" .name "annotations" (dict "helm.sh/resource-policy" "keep"))
      "spec" $spec }}
---
{{ toYaml $package }}
{{- end -}}
{{- end -}}

{{- /*
platform.common, of $, is the packages that are the same in every variant with a network of its own. Those whose values
differ by variant are not here, and each branch emits them itself: networking, linstor, multus, cozystack-scheduler.
*/ -}}
{{- define "platform.common" -}}
{{- range list "kubeovn-webhook" "kubeovn-plunger" "cozy-proxy" "metallb" "reloader" "linstor-scheduler" "snapshot-controller" -}}
{{- include "platform.package" (dict "root" $ "name" (printf "cozystack.%s" .)) -}}
{{- end -}}
{{- end -}}

{{- /* platform.multus, of (dict "root" $ "staging" VALUES "distribution" NAME), is Multus' package. */ -}}
{{- define "platform.multus" -}}
{{- /* Without a name Multus takes the first file it finds, which at boot is kube-ovn's. */ -}}
{{- $values := merge (dict
      "distribution" .distribution
      "multusMasterCNI" "05-cilium.conflist") .staging -}}
{{- include "platform.package" (dict "root" .root "name" "cozystack.multus" "components" (dict "multus" (dict "values" $values))) -}}
{{- end -}}

{{- /*
platform.staging, of (list $ DEFAULT), is what networking says of staging as values for Multus' chart, as JSON. Whether plugins are
staged is always among them: what networking.stageCniPlugins says, else DEFAULT. The others are where they are set.
*/ -}}
{{- define "platform.staging" -}}
{{- $networking := (index . 0).Values.networking | default dict -}}
{{- $stage := index . 1 -}}
{{- $by := "the variant" -}}
{{- if not (kindIs "invalid" $networking.stageCniPlugins) -}}
{{- $stage = eq "true" (include "chandler.boolean" (list "networking.stageCniPlugins" $networking.stageCniPlugins "leave it unset, or null, to follow the variant")) -}}
{{- $by = "its own value" -}}
{{- end -}}
{{- $values := dict "stageCniPlugins" $stage -}}
{{- if not (kindIs "invalid" $networking.stagePolicy) -}}
{{- $_ := set $values "stagePolicy" (include "chandler.policy" (list "networking.stagePolicy" $networking.stagePolicy "leave it unset, or null, to follow the variant")) -}}
{{- end -}}
{{- $policies := include "chandler.policies" (list "networking.stagePolicyFor" $networking.stagePolicyFor) | fromJson -}}
{{- if $policies -}}{{- $_ := set $values "stagePolicyFor" $policies -}}{{- end -}}
{{- if not (kindIs "invalid" $networking.stageUnknown) -}}
{{- $_ := set $values "stageUnknown" (include "chandler.unknown" (list "networking.stageUnknown" $networking.stageUnknown)) -}}
{{- end -}}
{{- if eq "true" (include "chandler.restore" (list "networking." $networking.restoreCniPlugins $stage $by)) -}}
{{- $_ := set $values "restoreCniPlugins" true -}}
{{- end -}}
{{- toJson $values -}}
{{- end -}}
