package distribution

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestSupported(t *testing.T) {
	all, err := Supported()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range all {
		names = append(names, d.Name)
	}
	if want := []string{"generic", "k3s", "k3s-no-flannel", "kubespray", "talos"}; !slices.Equal(names, want) {
		t.Errorf("supported are %v, not %v", names, want)
	}
}

// Only where the names are links into the distribution's own executable is staging to leave them by itself.
func TestPolicies(t *testing.T) {
	all, err := Supported()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		want := "replace"
		if d.Name == "k3s" {
			want = "missing"
		}
		if d.Policy != want {
			t.Errorf("%s: the policy is %s, not %s", d.Name, d.Policy, want)
		}
	}
}

func TestCheck(t *testing.T) {
	good := Distribution{
		Name: "some", Title: "Some", BinDir: "/opt/cni/bin", ConfDir: "/etc/cni/net.d", Capabilities: []string{"DAC_OVERRIDE"},
		Policy: "replace", Form: "files", Caveat: "None.", Sources: []string{"somewhere"},
	}
	if err := good.check(); err != nil {
		t.Fatal(err)
	}
	for what, spoil := range map[string]func(*Distribution){
		"binDir":       func(d *Distribution) { d.BinDir = "/opt/cni/bin/" },
		"confDir":      func(d *Distribution) { d.ConfDir = "etc/cni/net.d" },
		"capabilities": func(d *Distribution) { d.Capabilities = []string{"CAP_DAC_OVERRIDE"} },
		"name":         func(d *Distribution) { d.Name = "Some" },
		"linkTargets":  func(d *Distribution) { d.LinkTargets = "../../.." },
		"policy":       func(d *Distribution) { d.Policy = "" },
		"caveat":       func(d *Distribution) { d.Caveat = "" },
	} {
		bad := good
		spoil(&bad)
		if err := bad.check(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

func TestUnknownFieldIsRefused(t *testing.T) {
	var into map[string]Distribution
	if err := decode([]byte("some: {bindir: /opt}"), &into); err == nil {
		t.Error("a misspelled key was taken")
	}
}

func TestMarkdownIsCurrent(t *testing.T) {
	want, err := Markdown()
	if err != nil {
		t.Fatal(err)
	}
	const file = "../../docs/distributions.md"
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s is not what the data says; run 'go run ./cmd/chandlerctl chart docs'", file)
	}
}
