package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/engine"

	"github.com/chandler-cni/chandler/internal/chart"
)

var charts = []string{"multus", "platform"}

// helm lint has nothing to say, not even a recommendation.
func TestLint(t *testing.T) {
	for _, name := range charts {
		for _, values := range []map[string]any{nil, {"stageCniPlugins": true, "distribution": "talos", "namespace": map[string]any{"create": true}}, {"restoreCniPlugins": true}} {
			if name == "platform" && values != nil {
				values = map[string]any{"bundles": map[string]any{"system": map[string]any{"variant": "isp-full-generic"}}}
			}
			for _, m := range lint.RunAll(filepath.Join(chartsDir, name), values, "cni").Messages {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

func notes(t testing.TB, name, values string) string {
	t.Helper()
	vals, err := common.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	c := load(t, name, nil)
	top, err := util.ToRenderValues(c, vals, common.ReleaseOptions{Name: "net", Namespace: "cni", IsInstall: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Render(c, top)
	if err != nil {
		t.Fatal(err)
	}
	return files[name+"/templates/NOTES.txt"]
}

// What is said after an install names what was installed.
func TestNotes(t *testing.T) {
	on := notes(t, "multus", "{distribution: k3s, namespace: {name: there}, name: mine}")
	for _, want := range []string{
		"Multus " + appVersion(t), "DaemonSet there/mine", "rollout status daemonset/mine", "/var/lib/rancher/k3s/data/cni", "-c install-cni-plugins",
		`initContainerStatuses[?(@.name=="install-cni-plugins")]`, "failed to install:", "kubectl label namespace there pod-security.kubernetes.io/enforce=privileged",
	} {
		if !strings.Contains(on, want) {
			t.Errorf("the notes lack %q:\n%s", want, on)
		}
	}
	if strings.Contains(notes(t, "multus", "distribution: generic"), "stagePolicy") {
		t.Error("the notes speak of a policy that nobody chose")
	}
	chosen := notes(t, "multus", "{distribution: k3s, stagePolicyFor: {portmap: newer, bridge: never}}")
	if want := "somebody else's: stagePolicy=missing, stagePolicyFor.bridge=never, stagePolicyFor.portmap=newer.\n"; !strings.Contains(chosen, want) {
		t.Errorf("the notes lack %q:\n%s", want, chosen)
	}
	back := notes(t, "multus", "{distribution: generic, stageCniPlugins: false, restoreCniPlugins: true}")
	for _, want := range []string{
		"of every node the init container restore-cni-plugins puts back", "-c restore-cni-plugins", `initContainerStatuses[?(@.name=="restore-cni-plugins")]`, "set restoreCniPlugins=false",
	} {
		if !strings.Contains(back, want) || strings.Contains(back, "install-cni-plugins") || strings.Contains(back, "failed to install:") {
			t.Errorf("the notes of a restore lack %q, or speak of staging:\n%s", want, back)
		}
	}
	off := notes(t, "multus", "namespace: {create: true}")
	if strings.Contains(off, "install-cni-plugins") || !strings.Contains(off, "stageCniPlugins=true") || strings.Contains(off, "kubectl label") {
		t.Errorf("the notes without staging:\n%s", off)
	}
	if got := notes(t, "platform", ""); !strings.Contains(got, "Talos v1.13.6 and kube-ovn v1.15.10") {
		t.Errorf("the platform's notes:\n%s", got)
	}
}

// What was asked for and comes to nothing is no error, and is said: a policy for a name that is none of the pinned bundle's, which
// is most often misspelled, and one for unknown versions where no policy asks for versions.
func TestNotesWarn(t *testing.T) {
	const unknown = "WARNING: %sstageUnknown=keep: it belongs to the policy newer"
	p := loadPins(t)
	for name, prefix := range map[string]string{"multus": "", "platform": "networking."} {
		said := func(values string) string {
			if name == "platform" {
				values = "networking: " + values
			}
			return notes(t, name, values)
		}
		var staged []string
		for _, s := range p.Staged {
			staged = append(staged, s.Name)
			if got := said("{stagePolicyFor: {" + s.Name + ": never}}"); strings.Contains(got, "WARNING") {
				t.Errorf("%s: the pinned %s is not known:\n%s", name, s.Name, got)
			}
		}
		names := []string{"brigde", "whereabouts"}
		for _, l := range p.LeftOut {
			names = append(names, l.Name)
		}
		for _, other := range names {
			got := said("{stagePolicyFor: {" + other + ": never, bridge: never}}")
			if want := "WARNING: " + prefix + "stagePolicyFor." + other + ": "; strings.Count(got, "WARNING") != 1 || !strings.Contains(got, want) ||
				!strings.Contains(got, "It has "+strings.Join(staged, ", ")+".") {
				t.Errorf("%s: the notes of a policy for %s:\n%s", name, other, got)
			}
		}
		for values, warns := range map[string]bool{
			"{}": false, "{stageUnknown: keep}": true, "{stageUnknown: replace}": false, "{stageUnknown: keep, stagePolicy: missing}": true,
			"{stageUnknown: keep, stagePolicy: newer}": false, "{stageUnknown: keep, stagePolicyFor: {vlan: newer}}": false,
			"{stageUnknown: keep, stagePolicyFor: {vlan: never}}": true,
		} {
			if got := said(values); strings.Contains(got, fmt.Sprintf(unknown, prefix)) != warns || strings.Contains(got, "WARNING") != warns {
				t.Errorf("%s: the notes of %s:\n%s", name, values, got)
			}
		}
	}
}

func TestReadmesAreCurrent(t *testing.T) {
	for _, name := range charts {
		want, err := chart.Readme(filepath.Join(chartsDir, name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(chartsDir, name, "README.md"))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s/README.md is not what its values say (%v); run 'go run ./cmd/chandlerctl chart docs'", name, err)
		}
	}
}

// The schema knows each value, and no other.
func TestSchemaKnowsEachValue(t *testing.T) {
	for _, name := range charts {
		c := load(t, name, nil)
		var schema map[string]any
		if err := json.Unmarshal(c.Schema, &schema); err != nil {
			t.Fatal(err)
		}
		definitions, _ := schema["definitions"].(map[string]any)
		var compare func(path string, values, schema map[string]any)
		compare = func(path string, values, schema map[string]any) {
			if ref, ok := schema["$ref"].(string); ok {
				schema = definitions[strings.TrimPrefix(ref, "#/definitions/")].(map[string]any)
			}
			properties, _ := schema["properties"].(map[string]any)
			if properties == nil {
				return
			}
			for key, value := range values {
				under, ok := properties[key].(map[string]any)
				if !ok {
					t.Errorf("%s: the schema does not know %s%s", name, path, key)
					continue
				}
				if m, ok := value.(map[string]any); ok {
					compare(path+key+".", m, under)
				}
			}
			for key := range properties {
				if _, ok := values[key]; !ok && key != "global" {
					t.Errorf("%s: the schema knows %s%s, which is no value", name, path, key)
				}
			}
		}
		compare("", c.Values, schema)
		// Types only: a rule written twice would be two rules.
		for _, word := range []string{"pattern\"", "enum", "minLength", "minimum", "default"} {
			if strings.Contains(string(c.Schema), `"`+strings.Trim(word, `"`)+`"`) {
				t.Errorf("%s: the schema judges more than types: %s", name, word)
			}
		}
	}
}

// The two charts judge the values that they have in common by one rule.
func TestHelpersAreShared(t *testing.T) {
	for _, file := range []string{"_boolean.tpl", "_staging.tpl"} {
		var texts []string
		for _, name := range charts {
			data, err := os.ReadFile(filepath.Join(chartsDir, name, "templates", file))
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, string(data))
		}
		if len(slices.Compact(texts)) != 1 {
			t.Errorf("templates/%s differs between the charts; copy the one that is right over the other", file)
		}
	}
}
