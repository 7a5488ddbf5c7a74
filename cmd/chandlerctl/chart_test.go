package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/chandler-cni/chandler/internal/cli"
)

// command runs a command line and returns what it wrote and its exit code.
func command(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(context.Background(), cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errs}, args)
	return out.String(), errs.String(), code
}

func TestChartUpdateCommand(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"charts/multus"} {
		if err := os.CopyFS(filepath.Join(root, dir), os.DirFS(filepath.Join("../..", dir))); err != nil {
			t.Fatal(err)
		}
	}
	manifest := filepath.Join(root, "charts/multus/upstream/multus-daemonset-thick.yml")
	good, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "new.yml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	write("# Another.\n" + string(good))
	out, errs, code := command(t, "chart", "update", "multus", "v4.9.9", "--checkout", root, "--file", file)
	want := regexp.MustCompile(`^charts/multus/upstream/multus-daemonset-thick\.yml: changed\ncharts/multus/Chart\.yaml: v\S+, now v4\.9\.9\nupstream/multus/go\.mod: not in this checkout, nothing to move\n$`)
	if code != 0 || !want.MatchString(out) || errs != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
	}

	write(strings.ReplaceAll(string(good), "name: cnibin", "name: cni-bin"))
	out, errs, code = command(t, "chart", "update", "multus", "v4.9.10", "--checkout", root, "--file", file)
	if code != 1 || out != "" || !strings.Contains(errs, "volume cnibin is missing") || !strings.Contains(errs, "mount cnibin of container kube-multus is missing") {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
	}

	for _, args := range [][]string{
		{"chart", "update", "multus"},
		{"chart", "update", "multus", "4.3.0"},
		{"chart", "update", "multus", "latest"},
		{"chart", "update", "cilium", "v1.0.0"},
		{"chart", "update", "multus", "v4.3.0", "--file", "x", "--url", "y"},
		{"chart", "updat"},
		{"pins", "check", "--shipped", "talos"},
		{"pins", "check", "extra"},
	} {
		if _, errs, code := command(t, append(args, pinsFlag(args)...)...); code != 2 || errs == "" {
			t.Errorf("%v: exit %d, %q", args, code, errs)
		}
	}
}

func pinsFlag(args []string) []string {
	if args[0] == "pins" {
		return []string{"--pins", "../../upstream/pins.yaml"}
	}
	return nil
}

func TestChartDocsCommand(t *testing.T) {
	if out, errs, code := command(t, "chart", "docs", "--check", "--checkout", "../.."); code != 0 || out != "" || errs != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
	}
	root := t.TempDir()
	if err := os.CopyFS(filepath.Join(root, "charts"), os.DirFS("../../charts")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "docs"), 0o755); err != nil {
		t.Fatal(err)
	}
	readme := filepath.Join(root, "charts/multus/README.md")
	if err := os.WriteFile(readme, []byte("stale"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, errs, code := command(t, "chart", "docs", "--check", "--checkout", root)
	if code != 1 || !strings.Contains(errs, "charts/multus/README.md is not what its data says") || !strings.Contains(errs, "docs/distributions.md") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
	if got, _ := os.ReadFile(readme); string(got) != "stale" {
		t.Error("--check wrote")
	}
	out, _, code := command(t, "chart", "docs", "--checkout", root)
	if code != 0 || out != "charts/multus/README.md\ndocs/distributions.md\n" {
		t.Errorf("exit %d, stdout %q", code, out)
	}
	if _, _, code := command(t, "chart", "docs", "--check", "--checkout", root); code != 0 {
		t.Errorf("exit %d after writing", code)
	}
}

func TestPinsCheckCommand(t *testing.T) {
	flags := []string{"pins", "check", "--pins", "../../upstream/pins.yaml"}
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte("global:\n  images:\n    kubeovn:\n      tag: v1.15.10@sha256:0123\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	out, errs, code := command(t, append(flags, "--shipped", "talos=v1.13.6", "--shipped", "kube-ovn=@"+values+"#/global/images/kubeovn/tag")...)
	if want := "Talos 1.13.6: carries v1.9.1, as staged (bridge, firewall, host-local, portmap)\nkube-ovn 1.15.10: carries v1.9.1, as staged (macvlan, portmap)\n"; code != 0 || out != want || errs != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
	}
	out, errs, code = command(t, append(flags, "--shipped", "talos=1.14.0")...)
	if code != 1 || out != "" || !strings.Contains(errs, "talos 1.14.0 is shipped") || !strings.Contains(errs, "write: ") {
		t.Errorf("exit %d, stdout %q, stderr %q", code, out, errs)
	}
	if _, errs, code = command(t, flags...); code != 0 || errs != "" {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
	if _, errs, code = command(t, "pins", "check", "--pins", "/nowhere"); code != 1 || !strings.Contains(errs, "/nowhere") {
		t.Errorf("exit %d, stderr %q", code, errs)
	}
}
