package chart

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func platform(t testing.TB) release { return release{chart: load(t, "platform", nil)} }

// packages are the rendered Packages by name.
func packages(all objects) map[string]object {
	found := make(map[string]object)
	for _, o := range all {
		if o["kind"] == "Package" {
			found[at(o, "metadata", "name").(string)] = o
		}
	}
	return found
}

func variantValues(variant string) string {
	return fmt.Sprintf("bundles: {system: {variant: %s}}\n", variant)
}

// distributionOf is what each variant's nodes are.
var distributionOf = map[string]string{"isp-full": "talos", "isp-full-generic": "generic"}

// Every spelling, on every variant, where it is given and where it is not: the package says true or false, and never nothing.
func TestStagingDecision(t *testing.T) {
	overrides := map[string]bool{ // values, and what comes of them
		"":                                    true,
		"networking: null":                    true,
		"networking: {}":                      true,
		"networking: {stageCniPlugins: }":     true,
		"networking: {stageCniPlugins: null}": true,
		"networking: {other: value}":          true,
	}
	for spelled, means := range spellings {
		overrides["networking: {stageCniPlugins: "+spelled+"}"] = means
	}
	r := platform(t)
	for variant, distribution := range distributionOf {
		for override, means := range overrides {
			all := r.objects(t, variantValues(variant)+override)
			got := at(packages(all)["cozystack.multus"], "spec", "components", "multus", "values")
			want := object{"stageCniPlugins": means, "distribution": distribution, "multusMasterCNI": "05-cilium.conflist"}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %q: values are %v", variant, override, got)
			}
		}
		for _, value := range []any{1, int64(0), float64(1), true} { // as --set and JSON bring them
			text, err := r.renderMap(t, map[string]any{"networking": map[string]any{"stageCniPlugins": value}})
			if want := fmt.Sprintf("stageCniPlugins: %t", value != int64(0)); err != nil || !strings.Contains(text, want) {
				t.Errorf("%T %v: %v", value, value, err)
			}
		}
	}
	for _, variant := range []string{"isp-full", "isp-full-generic", "isp-hosted"} {
		for spelled, quoted := range unreadable {
			got := r.refused(t, variantValues(variant)+"networking: {stageCniPlugins: "+spelled+"}")
			if want := "networking.stageCniPlugins: expected a boolean, " + quoted + "; leave it unset, or null, to follow the variant"; !strings.Contains(got, want) {
				t.Errorf("%s, %s: %s", variant, spelled, got)
			}
		}
		for value, quoted := range map[string]string{"[true]": `got "[true]"`, "{a: b}": `got "{\"a\":\"b\"}"`} {
			if got := r.refused(t, variantValues(variant)+"networking: {stageCniPlugins: "+value+"}"); !strings.Contains(got, "networking.stageCniPlugins: expected a boolean, "+quoted) {
				t.Errorf("%s, %s: %s", variant, value, got)
			}
		}
	}
	// Also where nothing would come of it.
	got := r.refused(t, "{bundles: {system: {enabled: false}, disabledPackages: [cozystack.multus]}, networking: {stageCniPlugins: maybe}}")
	if !strings.Contains(got, "networking.stageCniPlugins: expected a boolean") {
		t.Error(got)
	}
}

var ownPackages = []string{"cozystack.networking", "cozystack.linstor", "cozystack.multus", "cozystack.cozystack-scheduler"}

func TestVariants(t *testing.T) {
	r := platform(t)
	common := make(map[string][]string)
	for variant, want := range map[string]map[string]string{
		"isp-full": {
			"cozystack.networking":          `{"variant":"kubeovn-cilium"}`,
			"cozystack.linstor":             `{"variant":"default"}`,
			"cozystack.multus":              `{"components":{"multus":{"values":{"distribution":"talos","multusMasterCNI":"05-cilium.conflist","stageCniPlugins":true}}},"variant":"default"}`,
			"cozystack.cozystack-scheduler": `{"variant":"linstor"}`,
		},
		"isp-full-generic": {
			"cozystack.networking":          `{"variant":"kubeovn-cilium-generic"}`,
			"cozystack.linstor":             `{"components":{"linstor":{"values":{"talos":{"enabled":false}}}},"variant":"default"}`,
			"cozystack.multus":              `{"components":{"multus":{"values":{"distribution":"generic","multusMasterCNI":"05-cilium.conflist","stageCniPlugins":true}}},"variant":"default"}`,
			"cozystack.cozystack-scheduler": `{"variant":"linstor"}`,
		},
	} {
		all := r.objects(t, variantValues(variant))
		found := packages(all)
		for name, spec := range want {
			if got := asJSON(t, at(found[name], "spec")); got != spec {
				t.Errorf("%s: %s is %s", variant, name, got)
			}
		}
		for name, p := range found {
			if p["apiVersion"] != "cozystack.io/v1alpha1" || at(p, "metadata", "annotations", "helm.sh/resource-policy") != "keep" {
				t.Errorf("%s: %s is %v", variant, name, p)
			}
			if !slices.Contains(ownPackages, name) {
				common[variant] = append(common[variant], name)
				if got := asJSON(t, p["spec"]); got != `{"variant":"default"}` {
					t.Errorf("%s: the common %s is %s", variant, name, got)
				}
			}
		}
		slices.Sort(common[variant])
		source := all.find("PackageSource", "cozystack.multus")
		if got, want := asJSON(t, at(source, "spec", "variants")), `[{"components":[{"install":{"namespace":"cozy-multus","privileged":true,"releaseName":"multus"},"name":"multus","path":"system/multus"}],"dependsOn":["cozystack.networking"],"name":"default"}]`; got != want {
			t.Errorf("%s: multus' source is %s", variant, got)
		}
		if len(found) != len(all)-1 {
			t.Errorf("%s: %d packages of %d objects; one name twice?", variant, len(found), len(all))
		}
	}
	if len(common["isp-full"]) == 0 || !slices.Equal(common["isp-full"], common["isp-full-generic"]) {
		t.Errorf("the common packages are %v", common)
	}
	for _, values := range []string{variantValues("isp-hosted"), "bundles: {system: {enabled: no}}", "bundles: {system: {enabled: 'Off', variant: isp-full-generic}}"} {
		if all := r.objects(t, values); len(all) != 0 {
			t.Errorf("%q ships %v", values, all)
		}
	}
	if got := r.refused(t, variantValues("isp-ful")); !strings.Contains(got, `bundles.system.variant: "isp-ful" is not known; known are isp-full, isp-full-generic, isp-hosted`) {
		t.Error(got)
	}
	if got := r.refused(t, "bundles: {system: {enabled: maybe}}"); !strings.Contains(got, `bundles.system.enabled: expected a boolean, got "maybe"`) {
		t.Error(got)
	}
	for _, values := range []string{"bundles: null", "bundles: {system: null}", "bundles: {disabledPackages: null}", "packageSource: null"} {
		if all := r.objects(t, values); len(packages(all)) != len(ownPackages)+len(common["isp-full"]) {
			t.Errorf("%q: %d packages", values, len(packages(all)))
		}
	}
}

func TestDisabledPackages(t *testing.T) {
	r := platform(t)
	for variant := range distributionOf {
		whole := packages(r.objects(t, variantValues(variant)))
		for name := range whole {
			all := packages(r.objects(t, fmt.Sprintf("bundles: {system: {variant: %s}, disabledPackages: [%s]}", variant, name)))
			if _, there := all[name]; there || len(all) != len(whole)-1 {
				t.Errorf("%s without %s has %d packages of %d", variant, name, len(all), len(whole))
			}
		}
	}
}

// What the platform says is what the Multus chart does: the values go over as they are.
func TestPlatformDrivesMultus(t *testing.T) {
	r := platform(t)
	for variant, distribution := range distributionOf {
		for override, staged := range map[string]bool{
			"": true, "networking: {stageCniPlugins: false}": false, "networking: {stageCniPlugins: 'off'}": false, "networking: {stageCniPlugins: 1}": true,
		} {
			values := at(packages(r.objects(t, variantValues(variant)+override))["cozystack.multus"], "spec", "components", "multus", "values").(object)
			text, err := release{}.renderMap(t, values)
			if err != nil {
				t.Fatal(err)
			}
			all := parse(t, text)
			if got := at(all.pod(t), "initContainers", "install-cni-plugins") != nil; got != staged {
				t.Errorf("%s, %q: staged is %t", variant, override, got)
			}
			if all.config(t)["multusMasterCNI"] != "05-cilium.conflist" {
				t.Errorf("%s: the primary CNI is left to chance", variant)
			}
			checkPaths(t, all, "/opt/cni/bin", "/etc/cni/net.d")
			if staged {
				got := at(all.pod(t), "initContainers", "install-cni-plugins", "securityContext", "seLinuxOptions")
				if (got == nil) != (distribution == "talos") {
					t.Errorf("%s: SELinux is %v", variant, got)
				}
			}
		}
	}
}

// Policies and the way back go over to Multus' chart as they are, and only where they are set, so that a package that says
// nothing of them stays what it was.
func TestPlatformPolicies(t *testing.T) {
	r := platform(t)
	for networking, want := range map[string]object{
		"{stagePolicy: null, stagePolicyFor: null, stageUnknown: null, restoreCniPlugins: null}": {"stageCniPlugins": true},
		"{stagePolicyFor: {}, restoreCniPlugins: false}":                                         {"stageCniPlugins": true},
		"{stagePolicyFor: {bridge: null}}":                                                       {"stageCniPlugins": true},
		"{stagePolicy: replace}":                                                                 {"stageCniPlugins": true, "stagePolicy": "replace"},
		"{stagePolicy: newer, stageUnknown: keep, stagePolicyFor: {vlan: missing, bridge: never}}": {
			"stageCniPlugins": true, "stagePolicy": "newer", "stageUnknown": "keep", "stagePolicyFor": object{"vlan": "missing", "bridge": "never"}},
		"{stageCniPlugins: off, restoreCniPlugins: 'On'}":  {"stageCniPlugins": false, "restoreCniPlugins": true},
		"{stageCniPlugins: off, restoreCniPlugins: 'off'}": {"stageCniPlugins": false},
	} {
		for variant, distribution := range distributionOf {
			got := at(packages(r.objects(t, variantValues(variant)+"networking: "+networking))["cozystack.multus"], "spec", "components", "multus", "values").(object)
			want["distribution"], want["multusMasterCNI"] = distribution, "05-cilium.conflist"
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s: values are %v", variant, networking, got)
			}
			if _, err := (release{}).renderMap(t, got); err != nil {
				t.Errorf("%s, %s: Multus' chart does not take them: %v", variant, networking, err)
			}
		}
	}
	for networking, says := range map[string]string{
		"{stagePolicy: always}":                           `networking.stagePolicy: expected replace, newer, missing or never, got "always"; leave it unset, or null, to follow the variant`,
		"{stagePolicy: true}":                             "networking.stagePolicy: expected replace, newer, missing or never, got true",
		"{stagePolicyFor: [bridge]}":                      `networking.stagePolicyFor: expected a map of plugins to policies such as {bridge: never}, got ["bridge"]`,
		"{stagePolicyFor: {bridge: no}}":                  "networking.stagePolicyFor.bridge: expected replace, newer, missing or never, got false",
		"{stagePolicyFor: {a/b: never}}":                  `networking.stagePolicyFor: expected the file names of plugins such as bridge, got "a/b"`,
		"{stageUnknown: missing}":                         `networking.stageUnknown: expected replace or keep, got "missing"`,
		"{stageCniPlugins: no, restoreCniPlugins: maybe}": `networking.restoreCniPlugins: expected a boolean, got "maybe"`,
		"{restoreCniPlugins: true}":                       "networking.stageCniPlugins is on too (by the variant)",
		"{restoreCniPlugins: true, stageCniPlugins: 1}":   "To decline set networking.stageCniPlugins=false; to stage set networking.restoreCniPlugins=false",
	} {
		for _, variant := range []string{"isp-full", "isp-full-generic", "isp-hosted"} {
			if got := r.refused(t, variantValues(variant)+"networking: "+networking); !strings.Contains(got, says) {
				t.Errorf("%s, %s: %s", variant, networking, got)
			}
		}
	}
}
