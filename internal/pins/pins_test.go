package pins

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"sigs.k8s.io/yaml"
)

// upstream is this checkout's.
const upstream = "../../" + Folder

func load(t *testing.T) *Pins {
	t.Helper()
	p, err := Load(filepath.Join(upstream, FileName))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPins(t *testing.T) {
	p := load(t).Plugins
	var staged, leftOut []string
	for _, s := range p.Staged {
		staged = append(staged, s.Name)
	}
	for _, l := range p.LeftOut {
		leftOut = append(leftOut, l.Name)
	}
	if len(staged) != 14 || !slices.IsSorted(staged) {
		t.Errorf("staged: %q", staged)
	}
	if diff := cmp.Diff([]string{"loopback", "dhcp", "tap", "dummy"}, leftOut); diff != "" {
		t.Error(diff)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		if p.Release.SHA256[arch] == "" {
			t.Errorf("no digest of the release for %s", arch)
		}
	}
	if len(p.ComparedWith) == 0 {
		t.Error("compared with nothing")
	}
}

// goJSON runs the Go command in the plugins' module and reads its answer.
func goJSON(t *testing.T, answer any, args ...string) {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = filepath.Join(upstream, PluginsDir)
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v", strings.Join(args, " "), err)
	}
	if err := json.Unmarshal(out, answer); err != nil {
		t.Fatal(err)
	}
}

// The bundle is built from what go.mod requires, and named after what the pins say: they have to agree.
func TestModuleAgrees(t *testing.T) {
	p := load(t).Plugins
	var mod struct {
		Require []struct{ Path, Version string }
		Tool    []struct{ Path string }
		Replace []any
		Exclude []any
	}
	goJSON(t, &mod, "mod", "edit", "-json")

	var version string
	for _, r := range mod.Require {
		if r.Path == p.Module {
			version = r.Version
		}
	}
	if version != p.Version {
		t.Errorf("go.mod requires %s %q, %s says %q", p.Module, version, FileName, p.Version)
	}
	if len(mod.Replace)+len(mod.Exclude) > 0 {
		t.Error("go.mod replaces or excludes modules: its source is not the release's")
	}
	var want, got []string
	for _, s := range p.Staged {
		want = append(want, p.Package(s))
	}
	for _, tool := range mod.Tool {
		got = append(got, tool.Path)
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tools of go.mod (+), packages of %s (-):\n%s", FileName, diff)
	}
}

// A plugin that upstream adds is staged or left out with a reason, never overlooked.
func TestEveryPluginDecided(t *testing.T) {
	p := load(t).Plugins
	var mod struct{ Dir string }
	goJSON(t, &mod, "mod", "download", "-json", p.Module)
	var want, got []string
	for _, role := range []string{"main", "ipam", "meta"} {
		entries, err := os.ReadDir(filepath.Join(mod.Dir, "plugins", role))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.IsDir() && e.Name() != "windows" {
				want = append(want, e.Name())
			}
		}
	}
	for _, s := range p.Staged {
		got = append(got, s.Name)
	}
	for _, l := range p.LeftOut {
		got = append(got, l.Name)
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("plugins of %s (-), names in %s (+):\n%s", p.Module, FileName, diff)
	}
}

// Each case changes the real file in one place and must be told of that place.
func TestLoadRefuses(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(upstream, FileName))
	if err != nil {
		t.Fatal(err)
	}
	digest := load(t).Plugins.Release.SHA256["amd64"]
	for _, test := range []struct{ name, old, new, want string }{
		{"not YAML", "plugins:", "plugins", "yaml: "},
		{"unknown field", "  version:", "  edition: x\n  version:", `unknown field "edition"`},
		{"field twice", "  version: v1.9.1", "  version: v1.9.1\n  version: v1.9.1", `key "version" already set`},
		{"two documents", "# The CNI", "---\nplugins: {}\n---\n# The CNI", "more than one YAML document"},
		{"no module", "  module: github.com/containernetworking/plugins", "", `plugins.module: "" is not the path of a module`},
		{"module that climbs", "module: github.com/", "module: github.com/../", `plugins.module: "github.com/../`},
		{"version without v", "version: v1.9.1", "version: 1.9.1", `plugins.version: "1.9.1" is not a version`},
		{"version of two parts", "version: v1.9.1", "version: v1.9", `plugins.version: "v1.9" is not a version`},
		{"name with a slash", "name: bridge", "name: main/bridge", `plugins.staged[1].name: plugin name "main/bridge"`},
		{"name twice", "name: bridge", "name: bandwidth", "plugins.staged[1].name: bandwidth is in plugins.staged[0].name already"},
		{"staged and left out", "name: dhcp", "name: vrf", "plugins.leftOut[1].name: vrf is in plugins.staged[13].name already"},
		{"role of others", "{name: vrf, role: meta}", "{name: vrf, role: extra}", `plugins.staged[13].role: "extra" is none of main, ipam, meta`},
		{"no role", "{name: vrf, role: meta}", "{name: vrf}", `plugins.staged[13].role: "" is none of`},
		{"no reason", "reason: needs a daemon on the host", "reason: ' '", "plugins.leftOut[1].reason: is empty"},
		{"digest in capitals", digest, strings.ToUpper(digest), `plugins.release.sha256["amd64"]: "B98F`},
		{"unknown architecture", "amd64:", "x64:", `plugins.release.sha256["x64"]: is not an architecture`},
		{"no product", "product: Talos", "product: ''", `plugins.comparedWith[0].product: "" is not a product's name`},
		{"no release", "release: 1.13.6", "release: ''", `plugins.comparedWith[0].release: version ""`},
		{"carries what", "carries: v1.9.1\n      writes: [macvlan", "carries: latest\n      writes: [macvlan", `plugins.comparedWith[1].carries: "latest" is not a version`},
		{"writes nothing", "writes: [macvlan, portmap]", "writes: []", "plugins.comparedWith[1].writes: is empty"},
		{"writes twice", "writes: [macvlan, portmap]", "writes: [portmap, portmap]", "plugins.comparedWith[1].writes[1]: portmap is named twice"},
		{"writes elsewhere", "writes: [macvlan, portmap]", "writes: [../portmap]", "plugins.comparedWith[1].writes[0]: plugin name"},
	} {
		t.Run(test.name, func(t *testing.T) {
			changed := strings.Replace(string(data), test.old, test.new, 1)
			if changed == string(data) {
				t.Fatalf("no %q in %s", test.old, FileName)
			}
			path := filepath.Join(t.TempDir(), "changed.yaml")
			if err := os.WriteFile(path, []byte(changed), 0o644); err != nil {
				t.Fatal(err)
			}
			p, err := Load(path)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("%v; want %q", err, test.want)
			}
			if p != nil {
				t.Error("an error and pins")
			}
			if !strings.HasPrefix(err.Error(), path+": ") {
				t.Errorf("does not name the file: %v", err)
			}
		})
	}
}

func TestLoadNamesEveryFinding(t *testing.T) {
	path := filepath.Join(t.TempDir(), "empty.yaml")
	if err := os.WriteFile(path, []byte("plugins: {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := Load(path)
	want := path + `: plugins.module: "" is not the path of a module
` + path + `: plugins.version: "" is not a version such as v1.9.1
` + path + `: plugins.staged: is empty
` + path + `: plugins.release.sha256: is empty`
	if err == nil {
		t.Fatal("no error")
	}
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Error(diff)
	}
}

func TestLoadUnreadable(t *testing.T) {
	dir := t.TempDir()
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, make([]byte, maxFile+1), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "none"), dir, big} {
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "read pins: ") || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	data, err := os.ReadFile(filepath.Join(upstream, FileName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte("plugins: {}"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("---\nplugins:\n  staged: [{name: x, role: main}]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, findings := parse(data)
		if (p == nil) != (len(findings) > 0) {
			t.Fatalf("%v, %v", p, findings)
		}
		if p == nil {
			return
		}
		spelled, err := yaml.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		again, findings := parse(spelled)
		if len(findings) > 0 {
			t.Fatalf("written and refused: %v\n%s", findings, spelled)
		}
		if diff := cmp.Diff(p, again, cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
	})
}
