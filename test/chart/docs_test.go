package chart

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"helm.sh/helm/v4/pkg/strvals"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/distribution"
	"github.com/chandler-cni/chandler/internal/pins"
	"github.com/chandler-cni/chandler/internal/plugin"
	"github.com/chandler-cni/chandler/internal/stage"
)

// The pages for operators quote the code: what they say is held to it here.
var pages = []string{"guide.md", "runbook.md", "talos.md", "k3s.md", "generic.md"}

func page(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func eachPage(t *testing.T, test func(t *testing.T, text string)) {
	for _, name := range pages {
		t.Run(name, func(t *testing.T) { test(t, page(t, name)) })
	}
}

var block = regexp.MustCompile("(?ms)^( *)```([a-z]*)\n(.*?)^ *```$")

// blocks returns the code blocks of a kind, those of lists without the list's indent.
func blocks(text, kind string) []string {
	var all []string
	for _, m := range block.FindAllStringSubmatch(text, -1) {
		if m[2] == kind {
			all = append(all, strings.ReplaceAll("\n"+m[3], "\n"+m[1], "\n")[1:])
		}
	}
	return all
}

var inline = regexp.MustCompile("`([^`\n]+)`")

// quoted returns what a text has in code quotes outside of code blocks, and its single words.
func quoted(text string) []string {
	var all []string
	for _, m := range inline.FindAllStringSubmatch(block.ReplaceAllString(text, ""), -1) {
		all = append(all, m[1])
	}
	return all
}

func reference(t testing.TB) string {
	return page(t, "reference/chandler.md") + page(t, "reference/chandlerctl.md")
}

func loadPins(t testing.TB) *pins.Plugins {
	t.Helper()
	p, err := pins.Load("../../upstream/pins.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return &p.Plugins
}

// Whole logs are read back by the package that writes them, and their causes are ones that it gives.
func TestGuideLogs(t *testing.T) {
	logs := blocks(page(t, "guide.md"), "log")
	if len(logs) != 2 {
		t.Fatalf("%d logs", len(logs))
	}
	staged := len(loadPins(t).Staged)
	source := sources(t, "internal/stage")
	for _, text := range logs {
		s, err := stage.ParseText(text)
		if err != nil {
			t.Errorf("%v:\n%s", err, text)
			continue
		}
		if n := s.New + s.Replaced + s.Unchanged + len(s.Failed); n != staged || s.Version != loadPins(t).Version || s.BinDir != "/opt/cni/bin" {
			t.Errorf("a log of %d plugins %s into %s:\n%s", n, s.Version, s.BinDir, text)
		}
		for _, f := range s.Failed {
			if f.Cause == (&stage.LeftError{Kind: "directory"}).Error() {
				continue
			}
			cause, kept := strings.CutSuffix(f.Cause, "; the old file was kept")
			if full := "write: " + syscall.ENOSPC.Error(); !kept || cause != full || !strings.Contains(source, `"; the old file was kept"`) {
				t.Errorf("no run says %q", f.Cause)
			}
		}
	}
	for _, prefix := range []string{"hint: "} {
		if !strings.Contains(source, `"`+prefix+`"`) || !strings.Contains(page(t, "guide.md"), "`"+strings.TrimSpace(prefix)+"`") {
			t.Errorf("%q is quoted and not written, or the other way", prefix)
		}
	}
	if hints := sources(t, "cmd/chandler"); !strings.Contains(hints, "no CAP_DAC_OVERRIDE") {
		t.Error("no hint asks for CAP_DAC_OVERRIDE")
	}
}

func sources(t testing.TB, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v in %s: %v", files, dir, err)
	}
	var all strings.Builder
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(data)
	}
	return all.String()
}

// The table of last lines is those that the code writes.
func TestGuideLastLines(t *testing.T) {
	const dir = "/opt/cni/bin"
	refused := func(err error) string { return stage.Staging.RefuseFor(dir, err).LastLine() }
	replaced := refused(&stage.BinDirError{Path: dir, Err: stage.ErrReplaced})
	can := []string{
		stage.Skip(dir, "no bundle at /cni-plugins").LastLine(),
		stage.Skip(dir, "empty bundle at /cni-plugins").LastLine(),
		refused(&bundle.DamageError{Path: "bin/bridge", Err: bundle.ErrDigest}),
		strings.TrimSuffix(replaced, "; nothing was staged"),
		refused(&stage.BinDirError{Path: dir, Err: stage.ErrNotMounted}),
	}
	code := sources(t, "cmd/chandler")
	for _, literal := range []string{`"no bundle at "`, `"empty bundle at "`, `defaultBundle = "/cni-plugins"`} {
		if !strings.Contains(code, literal) {
			t.Errorf("chandler no longer says %s", literal)
		}
	}
	_, table, _ := strings.Cut(page(t, "guide.md"), "| last line | what it means |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var said []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(table, -1) {
		said = append(said, m[1])
	}
	if !slices.Equal(said, can) {
		t.Errorf("the guide has\n%s\nand the code writes\n%s", strings.Join(said, "\n"), strings.Join(can, "\n"))
	}
}

// Containers are called what the pages call them, and the guide's table has each.
func TestGuideContainers(t *testing.T) {
	pod := release{}.objects(t, "stageCniPlugins: true").pod(t)
	restoring := release{}.objects(t, "restoreCniPlugins: true").pod(t)
	there := slices.Concat(names(pod["containers"]), names(pod["initContainers"]), names(restoring["initContainers"]))
	guide := page(t, "guide.md")
	for _, name := range there {
		if !strings.Contains(guide, "\n| `"+name+"`") {
			t.Errorf("the guide's table lacks %s", name)
		}
	}
	eachPage(t, func(t *testing.T, text string) {
		for _, name := range regexp.MustCompile(`\b(install-[a-z-]+|restore-[a-z-]+|kube-multus)\b`).FindAllString(text, -1) {
			if !slices.Contains(there, name) && name != "kube-multus-ds" && name != "kube-multus" {
				t.Errorf("no container %s", name)
			}
		}
		if strings.Contains(text, "-l name=multus") && at(release{}.objects(t, "").daemonset(t), "spec", "template", "metadata", "labels", "name") != "multus" {
			t.Error("the pods are not found by name=multus")
		}
	})
}

// othersFlags are the flags of programs that are not ours.
var othersFlags = []string{
	"--set", "--namespace", "--create-namespace", "--reuse-values", "--take-ownership", // helm
	"--prefix", "--profile", "--image", "--field-selector", // kubectl
	"--rm", "--privileged", "--mount", // ctr
	"--all",             // skopeo
	"--flannel-backend", // k3s
}

func TestGuideFlags(t *testing.T) {
	ours := reference(t)
	eachPage(t, func(t *testing.T, text string) {
		for _, flag := range regexp.MustCompile(`(?:^|[\s`+"`"+`])(--[a-z][a-z-]*)`).FindAllStringSubmatch(text, -1) {
			if !slices.Contains(othersFlags, flag[1]) && !strings.Contains(ours, "`"+flag[1]+"`") && !strings.Contains(ours, flag[1]+" ") {
				t.Errorf("no program has %s", flag[1])
			}
		}
		for _, command := range regexp.MustCompile(`\bchandler(?:ctl)? ([a-z]+(?: [a-z]+)?) --`).FindAllStringSubmatch(text, -1) {
			if !strings.Contains(ours, command[1]) {
				t.Errorf("no command %s", command[1])
			}
		}
	})
}

// valuePaths are all values of a chart, the maps among them included.
func valuePaths(values map[string]any, prefix string) []string {
	var all []string
	for key, value := range values {
		all = append(all, prefix+key)
		if under, ok := value.(map[string]any); ok {
			all = append(all, valuePaths(under, prefix+key+".")...)
		}
	}
	return all
}

// Every word in code quotes that looks like a value is one.
func TestGuideValues(t *testing.T) {
	known := slices.Concat(valuePaths(load(t, "multus", nil).Values, ""), valuePaths(load(t, "platform", nil).Values, ""),
		[]string{"updateStrategy.type", "perNodeCertificate", "OnDelete"})
	looks := regexp.MustCompile(`^([a-z]+[A-Z][A-Za-z]*|[a-z]+[A-Za-z]*\.[a-z][A-Za-z.]*[a-z])(?:[:=].*)?$`)
	eachPage(t, func(t *testing.T, text string) {
		n := 0
		for _, word := range quoted(text) {
			m := looks.FindStringSubmatch(word)
			if m == nil || strings.HasSuffix(word, ".conf") || strings.HasPrefix(word, "cozystack.") {
				continue
			}
			n++
			if name, ok := strings.CutPrefix(m[1], "stagePolicyFor."); ok && plugin.CheckName(name) == nil {
				continue // a key of the user's
			}
			if !slices.Contains(known, m[1]) {
				t.Errorf("%q is no value", word)
			}
		}
		if n == 0 {
			t.Error("no value is named; does the pattern still match?")
		}
	})
}

// Every helm command in the pages renders.
func TestGuideHelmCommands(t *testing.T) {
	n := 0
	eachPage(t, func(t *testing.T, text string) {
		for _, b := range blocks(text, "") {
			for line := range strings.Lines(strings.ReplaceAll(b, "\\\n", " ")) {
				if !strings.HasPrefix(line, "helm ") {
					continue
				}
				n++
				values := map[string]any{}
				for _, m := range regexp.MustCompile(`--set (\S+)`).FindAllStringSubmatch(line, -1) {
					set := strings.ReplaceAll(m[1], "sha256:…", "sha256:"+strings.Repeat("0", 64))
					if err := strvals.ParseInto(set, values); err != nil {
						t.Errorf("%s: %v", line, err)
					}
				}
				if !strings.Contains(line, "uninstall") && !strings.Contains(line, "./charts/multus") {
					t.Errorf("%s: of which chart?", line)
				}
				got, err := release{}.renderMap(t, values)
				if err != nil {
					t.Errorf("%s: %v", line, err)
				}
				if strings.Contains(line, "| grep install-cni-plugins") && strings.Contains(got, "install-cni-plugins") {
					t.Errorf("%s: prints something", line)
				}
			}
		}
	})
	if n < 12 {
		t.Errorf("%d commands; does the pattern still match?", n)
	}
}

// Every helm command that is for a release says in which namespace that is, wherever it is written down: Helm finds it nowhere else,
// and makes a second one elsewhere.
func TestHelmNamespaces(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, "../../README.md", "../../charts/multus/README.md", "../../charts/platform/README.md")
	command := regexp.MustCompile(`helm (?:install|upgrade|uninstall|rollback|template) [^\n` + "`" + `]+`)
	n := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range command.FindAllString(strings.ReplaceAll(string(data), "\\\n", " "), -1) {
			if n++; !strings.Contains(line, " --namespace ") {
				t.Errorf("%s: %s: in which namespace?", file, line)
			}
		}
	}
	if n < 15 {
		t.Errorf("%d commands; does the pattern still match?", n)
	}
}

// A chandler command in the pages is given no flag that another command has; and the runbook says of which the last words would be
// taken for the daemon's.
func TestGuideCommandFlags(t *testing.T) {
	of := make(map[string]string)
	for _, section := range strings.Split(page(t, "reference/chandler.md"), "\n## chandler ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		of[name] = text
	}
	has := func(command, flag string) bool { return strings.Contains(of[command], " "+flag+" ") }
	n := 0
	for _, name := range pages {
		for _, m := range regexp.MustCompile(`\bchandler ([a-z]+)( [^\n`+"`"+`]*)`).FindAllStringSubmatch(page(t, name), -1) {
			for _, flag := range regexp.MustCompile(` (--[a-z-]+)`).FindAllStringSubmatch(m[2], -1) {
				if n++; of[m[1]] != "" && flag[1] != "--init" && !has(m[1], flag[1]) {
					t.Errorf("%s: chandler %s has no %s", name, m[1], flag[1])
				}
			}
		}
	}
	if n < 10 {
		t.Errorf("%d flags; does the pattern still match?", n)
	}
	var leave []string
	for _, command := range []string{"stage", "restore", "verify", "inspect", "originals"} {
		if of[command] == "" {
			t.Errorf("the reference has no %s", command)
		}
		if has(command, "--termination-log") {
			leave = append(leave, "`"+command+"`")
		}
	}
	if want := strings.Join(leave, " and ") + " are given `--termination-log=` there"; !strings.Contains(page(t, "runbook.md"), want) {
		t.Errorf("the runbook does not say %q", want)
	}
}

// What the pages say of the notes' warning, of staging's and of inspect's words is what these say.
func TestGuideWarnings(t *testing.T) {
	runbook := strings.Join(strings.Fields(page(t, "runbook.md")), " ")
	if got := notes(t, "multus", "{stagePolicyFor: {brigde: never}}"); !strings.Contains(got, "WARNING: stagePolicyFor.") || !strings.Contains(runbook, "`WARNING: stagePolicyFor.`") {
		t.Errorf("the runbook names another warning than\n%s", got)
	}
	for _, quote := range []struct{ dir, format, said string }{
		{"internal/stage", "a policy is given for %s, which the bundle does not carry", "a policy is given for brigde, which the bundle does not carry"},
		{"cmd/chandler", `", not semantic"`, "`not semantic`"}, {"cmd/chandler", `"version unknown"`, "`version unknown`"},
	} {
		if !strings.Contains(sources(t, quote.dir), quote.format) || !strings.Contains(runbook, quote.said) {
			t.Errorf("%q is quoted and not written, or the other way", quote.said)
		}
	}
	for _, name := range []string{"guide.md", "runbook.md"} {
		if !strings.Contains(strings.Join(strings.Fields(page(t, name)), " "), "`v1.9.5 of github.com/myorg/plugins`") {
			t.Errorf("%s does not say how a fork's version looks", name)
		}
	}
}

// Sentences have one space between them.
func TestPagesSpaces(t *testing.T) {
	for _, name := range append(slices.Clone(pages), "guarantees.md", "image.md", "format.md", "image-references.md", "../README.md", "../CHANGELOG.md", "../CONTRIBUTING.md") {
		for _, m := range regexp.MustCompile(`(?m)^.*[a-z.,;:)`+"`"+`]  +[A-Za-z`+"`"+`].*$`).FindAllString(block.ReplaceAllString(page(t, name), ""), -1) {
			if !strings.HasPrefix(m, "|") {
				t.Errorf("%s: two spaces in %q", name, m)
			}
		}
	}
}

// Names of distributions and what is said of them are the data's.
func TestGuideDistributions(t *testing.T) {
	all, err := distribution.Supported()
	if err != nil {
		t.Fatal(err)
	}
	byName := make(map[string]distribution.Distribution)
	for _, d := range all {
		byName[d.Name] = d
	}
	eachPage(t, func(t *testing.T, text string) {
		for _, m := range regexp.MustCompile("distribution(?:=|: )([a-z0-9-]+)").FindAllStringSubmatch(text, -1) {
			if _, ok := byName[m[1]]; !ok {
				t.Errorf("no distribution %s", m[1])
			}
		}
	})
	k3s := page(t, "k3s.md")
	for _, name := range []string{"k3s", "k3s-no-flannel"} {
		if d := byName[name]; !strings.Contains(k3s, fmt.Sprintf("| `%s` | `%s` | `%s` |", d.Name, d.BinDir, d.ConfDir)) {
			t.Errorf("the table of k3s.md is not what is known of %s", name)
		}
	}
	list := func(names []string) string {
		return "`" + strings.Join(names[:len(names)-1], "`, `") + "` and `" + names[len(names)-1] + "`"
	}
	oneLine := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	for file, name := range map[string]string{"talos.md": "talos", "k3s.md": "k3s"} {
		if want := list(byName[name].Ships); !strings.Contains(oneLine(page(t, file)), want) {
			t.Errorf("%s does not say that it ships %s", file, want)
		}
	}
	guide := oneLine(page(t, "guide.md"))
	if !strings.Contains(guide, "`missing` for k3s with its own flannel, `replace` for all others") {
		t.Error("the guide does not say which policy is whose")
	}
	for name, d := range byName {
		if missing := name == "k3s"; missing != (d.Policy == "missing") || !missing && d.Policy != "replace" {
			t.Errorf("the guide and k3s.md say otherwise of the policy of %s", name)
		}
	}
	others := 0
	for _, s := range loadPins(t).Staged {
		if !slices.Contains(byName["k3s"].Ships, s.Name) {
			others++
		}
	}
	if others != 9 || !strings.Contains(oneLine(k3s), "the nine other plugins are staged") {
		t.Errorf("k3s.md does not say that %d plugins are staged", others)
	}
	if d := byName["kubespray"]; !slices.Equal(d.Capabilities, []string{"DAC_OVERRIDE"}) || d.Staging {
		t.Error("generic.md says otherwise of kubespray")
	}
	if byName["talos"].SELinuxType != "" {
		t.Error("talos.md says otherwise of SELinux")
	}
}

// The guide's policies are the chart's, each once; that the chart's are the program's is held by TestArgumentsAreUnderstood.
func TestGuidePolicies(t *testing.T) {
	_, table, _ := strings.Cut(page(t, "guide.md"), "| policy | what becomes of it |")
	table, _, _ = strings.Cut(table, "\n\n")
	var said []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|").FindAllStringSubmatch(table, -1) {
		said = append(said, m[1])
	}
	if want := "expected " + strings.Join(said[:max(0, len(said)-1)], ", ") + " or " + said[len(said)-1]; len(said) != 4 || !strings.Contains((release{}).refused(t, "stagePolicy: x"), want) {
		t.Errorf("the guide has the policies %v", said)
	}
}

// What the guide shows of a restore is how the program says it.
func TestGuideRestored(t *testing.T) {
	shown := blocks(page(t, "guide.md"), "restored")
	if len(shown) != 1 {
		t.Fatalf("%d restores", len(shown))
	}
	dir := t.TempDir()
	out, err := exec.Command(chandlerProgram(t), "restore", "--bin-dir", dir, "--termination-log=").Output()
	if err != nil {
		t.Fatalf("restore: %v", err)
	}
	number := regexp.MustCompile(`[0-9]+`)
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	got := number.ReplaceAllString(strings.Replace(lines[len(lines)-1], dir, "/opt/cni/bin", 1), "N")
	if want := number.ReplaceAllString(strings.TrimSpace(shown[0]), "N"); got != want {
		t.Errorf("the guide shows %q, the program says %q", want, got)
	}
}

// Counts, versions, names and sizes are those of the pins, of the chart and of upstream's manifest.
func TestGuideCounts(t *testing.T) {
	guide := strings.Join(strings.Fields(page(t, "guide.md")), " ")
	says := func(format string, args ...any) {
		t.Helper()
		if want := fmt.Sprintf(format, args...); !strings.Contains(guide, want) {
			t.Errorf("the guide does not say %q", want)
		}
	}
	p := loadPins(t)
	var names []string
	for _, s := range p.Staged {
		names = append(names, s.Name)
	}
	says("The %d plugins are `%s` and `%s`, at %s.", len(names), strings.Join(names[:len(names)-1], "`, `"), names[len(names)-1], p.Version)
	says("the %d plugins below", len(names))
	says("not among the %d", len(names))
	says("%d plugins are left out", len(p.LeftOut))
	for _, l := range p.LeftOut {
		says("`%s`", l.Name)
		says("%s)", l.Reason)
	}
	for _, c := range p.ComparedWith {
		says("%s %s", c.Product, c.Release)
	}
	says("carry the same %s", p.Version)
	for _, c := range p.ComparedWith {
		if c.Carries != p.Version {
			t.Errorf("the guide says that %s carries the same", c.Product)
		}
	}
	if want := fmt.Sprintf("three files a name, and three more of those that it could not read: most often at most %d files,", 3*len(names)); !strings.Contains(page(t, "runbook.md"), want) {
		t.Errorf("the runbook does not say %q", want)
	}
	up := parse(t, vendored(t))
	says("each of the six objects")
	if len(up) != 6 {
		t.Errorf("upstream has %d objects", len(up))
	}
	for _, o := range up {
		kind := strings.ToLower(o["kind"].(string))
		if kind == "customresourcedefinition" {
			kind = "crd"
		}
		says("%s/%s", kind, at(o, "metadata", "name"))
	}
	says("namespace kube-system")
	if at(up.daemonset(t), "metadata", "namespace") != "kube-system" {
		t.Error("upstream's namespace is another one")
	}
	says("Each daemon gets %v seconds", up.pod(t)["terminationGracePeriodSeconds"])
	says("upstream's %v is too little", at(up.pod(t), "containers", "kube-multus", "resources", "limits", "memory"))
	memory := load(t, "multus", nil).Values["memory"].(map[string]any)
	says("the daemon %v, the other two %v each", at(memory, "daemon", "limit"), at(memory, "installMultusBinary", "limit"))
	if at(memory, "installCniPlugins", "limit") != at(memory, "installMultusBinary", "limit") {
		t.Error("the other two have two limits")
	}
	says("docker://%s:TAG", at(load(t, "multus", nil).Values, "image", "repository"))
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	says("The plugins take 77 MB in `binDir`, and up to 154 MB")
	if !strings.Contains(string(readme), "| 77 MB | 154 MB |") {
		t.Error("README.md says otherwise of the size")
	}
	for _, name := range []string{"`multus-shim` and `passthru`", "`00-multus.conf`", "`.chandler`", "up to three files a name"} {
		says("%s", name)
	}
	store := sources(t, "internal/stage")
	for _, literal := range []string{`".chandler"`, `"originals"`, "keepOriginals = 3"} {
		if !strings.Contains(store, literal) {
			t.Errorf("internal/stage has no %s", literal)
		}
	}
}

// Links between the pages lead somewhere, to a heading too.
func TestPagesLinks(t *testing.T) {
	anchor := func(heading string) string {
		return strings.ReplaceAll(regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
	}
	for _, name := range append(slices.Clone(pages), "distributions.md", "../README.md", "../charts/multus/README.md", "../charts/platform/README.md") {
		for _, m := range regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`).FindAllStringSubmatch(page(t, name), -1) {
			to := name
			if m[1] != "" {
				to = filepath.Join(filepath.Dir(name), m[1])
			}
			if _, err := os.Stat(filepath.Join("../../docs", to)); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if m[2] == "" {
				continue
			}
			var there []string
			for _, h := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page(t, to), -1) {
				there = append(there, anchor(h[1]))
			}
			if !slices.Contains(there, m[2]) {
				t.Errorf("%s: %s has no heading %s", name, to, m[2])
			}
		}
	}
}
