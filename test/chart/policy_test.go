package chart

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/chandler-cni/chandler/internal/plugin"
)

// policyArgs are the staging container's arguments beyond those that every one has, or nil.
func policyArgs(t testing.TB, values string) []any {
	t.Helper()
	args, _ := at(release{}.objects(t, values).pod(t), "initContainers", "install-cni-plugins", "args").([]any)
	if len(args) < 5 {
		t.Fatalf("the arguments are %v", args)
	}
	if len(args) == 5 {
		return nil
	}
	return args[5:]
}

// What is the program's own default is not said, and the order does not depend on the values': a pod whose arguments change is
// replaced on every node.
func TestPolicyArguments(t *testing.T) {
	for values, want := range map[string]string{
		"":                                      "[]",
		"stagePolicy: null":                     "[]",
		"stagePolicy: replace":                  "[]",
		"stagePolicyFor: null":                  "[]",
		"stagePolicyFor: {}":                    "[]",
		"stagePolicyFor: {bridge: replace}":     "[]",
		"stagePolicyFor: {bridge: null}":        "[]",
		"stageUnknown: null":                    "[]",
		"stageUnknown: replace":                 "[]",
		"restoreCniPlugins: 'off'":              "[]",
		"stagePolicy: newer":                    "[--policy=newer]",
		"stagePolicy: missing":                  "[--policy=missing]",
		"stagePolicy: never":                    "[--policy=never]",
		"stageUnknown: keep":                    "[--unknown=keep]",
		"stagePolicyFor: {bridge: never}":       "[--policy-for=bridge=never]",
		"stagePolicyFor: {my.own_1+x-y: newer}": "[--policy-for=my.own_1+x-y=newer]",
		"stagePolicy: newer\nstageUnknown: keep\nstagePolicyFor: {vlan: missing, bridge: replace, tuning: newer, bandwidth: never, ptp: null}": "[--policy=newer " +
			"--policy-for=bandwidth=never --policy-for=bridge=replace --policy-for=vlan=missing --unknown=keep]",
		"distribution: k3s\nstagePolicyFor: {bridge: replace, portmap: missing}": "[--policy=missing --policy-for=bridge=replace]",
		"distribution: k3s\nstagePolicy: newer":                                  "[--policy=newer]",
	} {
		if got := fmt.Sprint(policyArgs(t, "stageCniPlugins: true\n"+values)); got != want {
			t.Errorf("%q: the arguments are %s", values, got)
		}
	}
	// They may stand there while nothing is staged, so that staging can be turned off and on.
	all := release{}.objects(t, "{stagePolicy: newer, stagePolicyFor: {bridge: never}, stageUnknown: keep}")
	if got := names(all.pod(t)["initContainers"]); !slices.Equal(got, []string{"install-multus-binary"}) {
		t.Errorf("a policy alone makes the init containers %v", got)
	}
}

func TestPoliciesAreJudged(t *testing.T) {
	const policies = "expected replace, newer, missing or never, got "
	for values, says := range map[string]string{
		"stagePolicy: always":                        `stagePolicy: ` + policies + `"always"; leave it unset, or null, to follow distribution`,
		"stagePolicy: ''":                            `stagePolicy: ` + policies + `""`,
		"stagePolicy: Newer":                         `stagePolicy: ` + policies + `"Newer"`,
		"stagePolicy: off":                           "/stagePolicy",
		"stagePolicyFor: {bridge: pinned}":           `stagePolicyFor.bridge: ` + policies + `"pinned"; leave it out, or null, to treat it as the others`,
		"stagePolicyFor: {bridge: ''}":               `stagePolicyFor.bridge: ` + policies + `""`,
		"stagePolicyFor: {bridge: false}":            "/stagePolicyFor/bridge",
		"stagePolicyFor: [bridge]":                   "/stagePolicyFor",
		"stagePolicyFor: never":                      "/stagePolicyFor",
		"stageUnknown: newer":                        `stageUnknown: expected replace or keep, got "newer"; leave it unset, or null, for replace`,
		"stageUnknown: ''":                           `stageUnknown: expected replace or keep, got ""`,
		"stageUnknown: true":                         "/stageUnknown",
		"restoreCniPlugins: maybe":                   `restoreCniPlugins: expected a boolean, got "maybe"`,
		"{stagePolicy: always, distribution: k3s}":   `stagePolicy: ` + policies + `"always"`,
		"{stagePolicy: ab, stageCniPlugins: false}":  `stagePolicy: ` + policies + `"ab"`,
		"{stageUnknown: ab, stageCniPlugins: false}": `stageUnknown: expected`,
	} {
		if got := (release{}).refused(t, values); !strings.Contains(got, says) && !strings.Contains(got, strings.ReplaceAll(says, "/", ".")) {
			t.Errorf("%s: %s", values, got)
		}
	}
}

// A plugin's name is judged by the same rule as in a bundle.
func TestPolicyNames(t *testing.T) {
	for _, name := range []string{
		"bridge", "host-local", "a", "9", "A.b_c+d-e", strings.Repeat("x", 128), strings.Repeat("x", 129), "", "-x", ".x", "_x", "+x",
		"a/b", "a b", "a=b", "a\n", "a\x00", "é", "a:b", "$(X)", "..",
	} {
		_, err := release{}.renderMap(t, map[string]any{"stagePolicyFor": map[string]any{name: "never"}})
		want := plugin.CheckName(name)
		if (err == nil) != (want == nil) {
			t.Errorf("%q: the chart says %v, a bundle %v", name, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), "stagePolicyFor: expected the file names of plugins such as bridge, got ") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// Restoring stands where staging does and has what staging has.
func TestRestoringContainer(t *testing.T) {
	for _, more := range []string{
		"", "\ndistribution: talos", "\ndistribution: kubespray\nstagePolicy: newer", "\ndistribution: k3s",
		"\nbinDir: /srv/bin\nstageCapabilities: [FOWNER]\nmemory: {installCniPlugins: {limit: 32Mi}}\nimage: {pullPolicy: Always}",
	} {
		for _, spelled := range []string{"true", "'On'", "1", "yes"} {
			staging := release{}.objects(t, "stageCniPlugins: true"+more).pod(t)
			pod := release{}.objects(t, "stageCniPlugins: false\nrestoreCniPlugins: "+spelled+more).pod(t)
			if got := names(pod["initContainers"]); !slices.Equal(got, []string{"install-multus-binary", "restore-cni-plugins"}) {
				t.Fatalf("%s: init containers run in the order %v", more, got)
			}
			stage, restore := at(staging, "initContainers", "install-cni-plugins").(object), at(pod, "initContainers", "restore-cni-plugins").(object)
			if got := differences("", stage, restore); !slices.Equal(got, []string{".args", ".name"}) {
				t.Errorf("%s: the two containers differ in %v", more, got)
			}
			args := stage["args"].([]any)
			if want := []any{"restore", "--init", args[3], args[4]}; !reflect.DeepEqual(restore["args"], want) {
				t.Errorf("%s: the arguments are %v, not %v", more, restore["args"], want)
			}
			delete(staging, "initContainers")
			delete(pod, "initContainers")
			if got := differences("", staging, pod); len(got) > 0 {
				t.Errorf("%s: the pods differ in %v", more, got)
			}
		}
	}
	for _, off := range []string{"", "restoreCniPlugins: false", "restoreCniPlugins: null", "restoreCniPlugins: 'No'"} {
		if got := names(release{}.objects(t, off).pod(t)["initContainers"]); !slices.Equal(got, []string{"install-multus-binary"}) {
			t.Errorf("%q: init containers are %v", off, got)
		}
	}
	for values, says := range map[string]string{
		"{restoreCniPlugins: true, stageCniPlugins: true}":  "restoreCniPlugins: is on, and stageCniPlugins is on too (by its own value)",
		"{restoreCniPlugins: yes, distribution: talos}":     "stageCniPlugins is on too (by distribution=talos)",
		"{restoreCniPlugins: 1, distribution: k3s}":         "To decline set stageCniPlugins=false; to stage set restoreCniPlugins=false",
		"{restoreCniPlugins: maybe, stageCniPlugins: true}": "restoreCniPlugins: expected a boolean",
	} {
		if got := (release{}).refused(t, values); !strings.Contains(got, says) {
			t.Errorf("%s: %s", values, got)
		}
	}
	release{}.objects(t, "{restoreCniPlugins: true, distribution: kubespray}") // where nothing is staged unless it is asked for
}

// chandlerProgram builds the node's program of this checkout.
func chandlerProgram(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "chandler")
	cmd := exec.Command("go", "build", "-o", file, "./cmd/chandler")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build chandler: %v: %s", err, out)
	}
	return file
}

// What the chart writes is what the program reads. Without --init, which forgives everything, wrong usage is exit code 2.
func TestArgumentsAreUnderstood(t *testing.T) {
	program := chandlerProgram(t)
	run := func(args []any) (int, string) {
		words := []string{"--termination-log="}
		for _, a := range args {
			word := a.(string)
			switch { // nothing of this machine's
			case word == "--init":
				continue
			case strings.HasPrefix(word, "--bundle="):
				word = "--bundle=" + filepath.Join(t.TempDir(), "none")
			case strings.HasPrefix(word, "--bin-dir="):
				word = "--bin-dir=" + t.TempDir()
			}
			words = append(words, word)
		}
		words[0], words[1] = words[1], words[0]
		out, err := exec.Command(program, words...).CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if exit != nil {
			return exit.ExitCode(), string(out)
		}
		return 0, string(out)
	}
	args := func(container, values string) []any {
		return at(release{}.objects(t, values).pod(t), "initContainers", container, "args").([]any)
	}
	for _, more := range []string{
		"", "stagePolicy: newer", "stagePolicy: missing", "stagePolicy: never", "stageUnknown: keep", "distribution: k3s",
		"stagePolicy: missing\nstageUnknown: keep\nstagePolicyFor: {bridge: replace, vlan: newer, vrf: never, my.own_1+x-y: replace}",
		"stagePolicyFor: {bridge: missing}",
	} {
		if code, out := run(args("install-cni-plugins", "stageCniPlugins: true\n"+more)); code != 0 || !strings.Contains(out, "no bundle at ") {
			t.Errorf("%q: exit code %d: %s", more, code, out)
		}
	}
	if code, out := run(args("restore-cni-plugins", "restoreCniPlugins: true")); code != 0 {
		t.Errorf("restore: exit code %d: %s", code, out)
	}
	// The program has no word for anything else, or the above would prove nothing.
	for _, bad := range []string{"--policy=always", "--policy-for=bridge=always", "--policy-for=bridge", "--policy-for=-x=never", "--unknown=missing"} {
		code, out := run(append(args("install-cni-plugins", "stageCniPlugins: true"), bad))
		if flag, _, _ := strings.Cut(bad, "="); code != 2 || strings.Contains(out, "unknown flag") || !strings.Contains(out, flag) {
			t.Errorf("%s: exit code %d: %s", bad, code, out)
		}
	}
}
