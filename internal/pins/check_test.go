package pins

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// What the platform ships, the plugins were compared with. The text of a failure says what to do.
func TestPlatformShipsWhatWasCompared(t *testing.T) {
	const file = "../../charts/platform/files/releases.yaml"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var releases map[string]string
	if err := yaml.UnmarshalStrict(data, &releases); err != nil {
		t.Fatal(err)
	}
	if len(releases) != 2 {
		t.Errorf("%s names %v, not Talos and kube-ovn", file, releases)
	}
	p := load(t).Plugins
	for product := range releases {
		s, err := ParseShipped(product + "=@" + file + "#/" + product)
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := p.Check([]Shipped{s}); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	// And the other way: what is no longer shipped need not be compared with.
	for _, c := range p.ComparedWith {
		if _, ok := releases[strings.ToLower(c.Product)]; !ok {
			t.Errorf("%s is compared with and not shipped", c.Product)
		}
	}
}

func TestParseShipped(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	values := write("values.yaml", "global:\n  images:\n    kubeovn:\n      repository: kube-ovn\n      tag: v1.15.10@sha256:00\n  list: [{a/b: v1.2.3}]\n  number: 1.10\n  empty: ''\n")
	plain := write("VERSION", "v1.13.6\n")
	for arg, want := range map[string]Shipped{
		"talos=v1.13.6":                                         {"talos", "1.13.6"},
		"talos=1.13.6":                                          {"talos", "1.13.6"},
		"kube-ovn=v1.15.10@sha256:0123":                         {"kube-ovn", "1.15.10"},
		"kube-ovn=1.15.10@sha256:0123":                          {"kube-ovn", "1.15.10"},
		"talos=ghcr.io/siderolabs/installer:v1.13.6":            {"talos", "1.13.6"},
		"talos=localhost:5000/siderolabs/installer:v1.13.6@sha": {"talos", "1.13.6"},
		"kube-ovn=@" + values + "#/global/images/kubeovn/tag":   {"kube-ovn", "1.15.10"},
		"x=@" + values + "#/global/list/0/a~1b":                 {"x", "1.2.3"},
		"talos=@" + plain:                                       {"talos", "1.13.6"},
	} {
		if got, err := ParseShipped(arg); err != nil || got != want {
			t.Errorf("%s: %v, %v", arg, got, err)
		}
	}
	for arg, says := range map[string]string{
		"talos":                                  "want PRODUCT=RELEASE",
		"talos=":                                 "want PRODUCT=RELEASE",
		"=v1":                                    "want PRODUCT=RELEASE",
		"talos=v":                                "is not a release",
		"talos=registry/installer":               "is not a release",
		"talos=v1 .2":                            "is not a release",
		"x=@" + filepath.Join(dir, "absent"):     "no such file",
		"x=@" + values + "#/global/images/other": "nothing at /global/images/other",
		"x=@" + values + "#/global/list/7":       "nothing at /global/list/7",
		"x=@" + values + "#/global/number":       "has to be quoted",
		"x=@" + values + "#/global/images":       "is no text",
		"x=@" + values + "#/global/empty":        "is not a release",
		"x=@" + values + "#global":               "is no JSON pointer",
		"x=@" + values:                           "holds more than a release",
	} {
		if got, err := ParseShipped(arg); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, %v", arg, got, err)
		}
	}
}

func TestCheck(t *testing.T) {
	p := load(t).Plugins
	said, err := p.Check([]Shipped{{"talos", "1.13.6"}, {"Kube-OVN", "1.15.10"}})
	if want := []string{"Talos 1.13.6: carries v1.9.1, as staged (bridge, firewall, host-local, portmap)", "kube-ovn 1.15.10: carries v1.9.1, as staged (macvlan, portmap)"}; err != nil || !slices.Equal(said, want) {
		t.Errorf("%q, %v", said, err)
	}

	said, err = p.Check([]Shipped{{"talos", "1.14.0"}, {"kube-ovn", "1.15.10"}, {"calico", "3.30.0"}})
	if len(said) != 1 || !strings.HasPrefix(said[0], "kube-ovn") {
		t.Errorf("what is right is not said beside what is not: %q", said)
	}
	var not *NotComparedError
	if !errors.As(err, &not) {
		t.Fatalf("got %v", err)
	}
	for _, says := range []string{
		"talos 1.14.0 is shipped, and the staged plugins were compared with 1.13.6",
		"look up: the version of containernetworking/plugins in talos 1.14.0",
		"siderolabs/pkgs",
		"decide: staging replaces its bridge, firewall, host-local, portmap by v1.9.1",
		"write: release, carries and writes of talos, under plugins.comparedWith in upstream/pins.yaml",
		"calico 3.30.0 is shipped, and the staged plugins were never compared with any calico",
	} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("lacks %q:\n%v", says, err)
		}
	}

	// Another version was decided on and written down: said, and no failure.
	p.ComparedWith = []Compared{{"Talos", "v1.12.0", "v1.8.0", []string{"bridge", "loopback"}}, {"Other", "2", "v1.0.0", []string{"loopback"}}}
	said, err = p.Check([]Shipped{{"talos", "1.12.0"}, {"other", "2"}})
	if want := []string{"Talos v1.12.0: carries v1.8.0, and staging replaces bridge by v1.9.1", "Other 2: writes none of the staged names"}; err != nil || !slices.Equal(said, want) {
		t.Errorf("%q, %v", said, err)
	}
}
