package pins

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"golang.org/x/mod/modfile"

	"github.com/chandler-cni/chandler/internal/download"
)

// Update moves the pins of the reference plugins to another version: the digests of the release's tarballs, and the Go module
// that they are built from with all that it needs. All of it is written, or nothing.
type Update struct {
	Folder  string // that holds FileName and PluginsDir
	Version string // such as v1.9.1
	URL     string // of the tarballs, with {arch} and {version} in it; ".sha256" behind it is the digest's. Empty: ReleaseURL
	DryRun  bool   // find everything out and write nothing

	// Environ is the caller's environment: where the Go command gets modules from, and whom it trusts.
	Environ []string
}

// Change is one thing that an update moves.
type Change struct{ What, Was, Now string }

// Updated says what an update did, and what it leaves to a person.
type Updated struct {
	Changes []Change // those that change nothing too
	Look    []string // what else has to be looked at, a line each
}

// RepublishedError says that a release has other bytes than those that are pinned for the same version.
type RepublishedError struct{ Version, Arch, Pinned, Now string }

func (e *RepublishedError) Error() string {
	return fmt.Sprintf("the release %s for %s has the digest %s by now, and pinned is %s: it was published anew", e.Version, e.Arch, e.Now, e.Pinned)
}

// maxSum bounds a file that holds one digest and one name, in bytes.
const maxSum = 4 << 10

// CheckVersion reports why version cannot be one of the plugins'.
func CheckVersion(version string) error {
	if !validVersion.MatchString(version) {
		return fmt.Errorf("version %q: want one such as v1.9.1", version)
	}
	return nil
}

// Run does the update. When it fails, every file is as it was.
func (u Update) Run(ctx context.Context) (*Updated, error) {
	if err := CheckVersion(u.Version); err != nil {
		return nil, err
	}
	file := filepath.Join(u.Folder, FileName)
	old, err := Load(file)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read pins: %w", err)
	}
	done := &Updated{Changes: []Change{{"plugins.version", old.Plugins.Version, u.Version}}}
	values := map[string]string{"version": u.Version}
	for _, arch := range slices.Sorted(maps.Keys(old.Plugins.Release.SHA256)) {
		was := old.Plugins.Release.SHA256[arch]
		now, err := u.digest(ctx, arch)
		if err != nil {
			return nil, fmt.Errorf("look up release for %s: %w", arch, err)
		}
		if u.Version == old.Plugins.Version && now != was {
			return nil, &RepublishedError{u.Version, arch, was, now}
		}
		values["release/sha256/"+arch] = now
		done.Changes = append(done.Changes, Change{"plugins.release.sha256." + arch, was, now})
	}
	edited, err := editValues(text, "plugins", values)
	if err != nil {
		return nil, fmt.Errorf("edit %s: %w", file, err)
	}
	changed, findings := parse(edited)
	if findings != nil {
		return nil, fmt.Errorf("edit %s: %w", file, errors.Join(findings...))
	}

	m, err := u.module(ctx, &changed.Plugins)
	if err != nil {
		return nil, err
	}
	done.Changes = append(done.Changes, m.changes...)
	done.Look = lookAt(&changed.Plugins, m.dir)
	if u.DryRun {
		return done, nil
	}
	plugins := filepath.Join(u.Folder, PluginsDir)
	return done, writeAll(map[string][]byte{
		file:                             edited,
		filepath.Join(plugins, "go.mod"): m.mod,
		filepath.Join(plugins, "go.sum"): m.sum,
	})
}

// digest gets what upstream says of the tarball beside it.
func (u Update) digest(ctx context.Context, arch string) (string, error) {
	template := u.URL
	if template == "" {
		template = ReleaseURL
	}
	address, err := ExpandURL(template, arch, u.Version)
	if err != nil {
		return "", err
	}
	text, err := download.Request{URL: address + ".sha256", Limit: maxSum}.Bytes(ctx)
	if err != nil {
		return "", err
	}
	return parseSum(text, path.Base(strings.NewReplacer("{arch}", arch, "{version}", u.Version).Replace(ReleaseURL)))
}

// parseSum reads what sha256sum prints of one file.
func parseSum(text []byte, name string) (string, error) {
	fields := strings.Fields(string(text))
	if len(fields) == 0 || len(fields) > 2 || !validSHA256.MatchString(fields[0]) {
		return "", fmt.Errorf("%.80q is not a digest and a name", text)
	}
	if len(fields) == 2 && path.Base(strings.TrimPrefix(fields[1], "*")) != name {
		return "", fmt.Errorf("is the digest of %.80q, not of %s", fields[1], name)
	}
	return fields[0], nil
}

// editValues puts other texts in the place of values below a mapping at the top, whose keys are joined with slashes. All else,
// comments too, stays to the byte.
func editValues(text []byte, top string, values map[string]string) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	type edit struct {
		at       int
		old, new string
	}
	var edits []edit
	lines := bytes.SplitAfter(text, []byte("\n"))
	for _, key := range slices.Sorted(maps.Keys(values)) {
		node := doc.Content[0]
		for step := range strings.SplitSeq(top+"/"+key, "/") {
			if node = child(node, step); node == nil {
				return nil, fmt.Errorf("no %s.%s", top, key)
			}
		}
		at := 0
		for _, line := range lines[:node.Line-1] {
			at += len(line)
		}
		// A column counts characters.
		for range node.Column - 1 {
			_, width := utf8.DecodeRune(text[at:])
			at += width
		}
		if node.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
			at++
		}
		if node.Kind != yaml.ScalarNode || !bytes.HasPrefix(text[at:], []byte(node.Value)) {
			return nil, fmt.Errorf("line %d: %s.%s is not written as it reads", node.Line, top, key)
		}
		edits = append(edits, edit{at, node.Value, values[key]})
	}
	slices.SortFunc(edits, func(a, b edit) int { return b.at - a.at })
	out := bytes.Clone(text)
	for _, e := range edits {
		out = slices.Replace(out, e.at, e.at+len(e.old), []byte(e.new)...)
	}
	return out, nil
}

func child(node *yaml.Node, key string) *yaml.Node {
	if node.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == key {
				return node.Content[i+1]
			}
		}
	}
	return nil
}

// movedModule is the Go module of the plugins at another version.
type movedModule struct {
	mod, sum []byte // its go.mod and go.sum
	dir      string // of the plugins' source
	changes  []Change
}

// module moves a copy of the Go module. What it requires indirectly is dropped and taken anew from the plugins' own go.mod, so
// that a move down does not keep what a move up needed.
func (u Update) module(ctx context.Context, p *Plugins) (_ *movedModule, err error) {
	tmp, err := os.MkdirTemp("", "chandler-pins-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	from := filepath.Join(u.Folder, PluginsDir)
	name := filepath.Join(from, "go.mod")
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read module: %w", err)
	}
	sums, err := os.ReadFile(filepath.Join(from, "go.sum"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read module: %w", err)
	}
	mod, err := modfile.Parse(name, data, nil)
	if err != nil {
		return nil, fmt.Errorf("read module: %w", err)
	}
	was := ""
	for _, r := range slices.Clone(mod.Require) {
		if r.Mod.Path == p.Module {
			was = r.Mod.Version
		} else if r.Indirect {
			err = errors.Join(err, mod.DropRequire(r.Mod.Path))
		}
	}
	if was == "" {
		return nil, fmt.Errorf("read module: %s does not require %s", name, p.Module)
	}
	if err = errors.Join(err, mod.AddRequire(p.Module, p.Version)); err != nil {
		return nil, fmt.Errorf("edit %s: %w", name, err)
	}
	mod.Cleanup()
	moved, err := mod.Format()
	if err != nil {
		return nil, fmt.Errorf("edit %s: %w", name, err)
	}
	err = errors.Join(os.WriteFile(filepath.Join(tmp, "go.mod"), moved, 0o600), os.WriteFile(filepath.Join(tmp, "go.sum"), sums, 0o600))
	if err != nil {
		return nil, err
	}

	var got struct{ Dir, Sum, Error string }
	out, err := u.goCommand(ctx, tmp, "mod", "download", "-json", p.Module+"@"+p.Version)
	if jsonErr := json.Unmarshal(out, &got); got.Error != "" {
		return nil, fmt.Errorf("download module: %s", got.Error)
	} else if err != nil || jsonErr != nil {
		return nil, fmt.Errorf("download module: %w", errors.Join(err, jsonErr))
	}
	if _, err := u.goCommand(ctx, tmp, "mod", "tidy"); err != nil {
		return nil, fmt.Errorf("move module: %w", err)
	}
	m := &movedModule{dir: got.Dir, changes: []Change{
		{path.Join(PluginsDir, "go.mod"), was, p.Version},
		{path.Join(PluginsDir, "go.sum"), sumOf(sums, p.Module, was), got.Sum},
	}}
	if m.mod, err = os.ReadFile(filepath.Join(tmp, "go.mod")); err != nil {
		return nil, err
	}
	if m.sum, err = os.ReadFile(filepath.Join(tmp, "go.sum")); err != nil {
		return nil, err
	}
	if sumOf(m.sum, p.Module, p.Version) != got.Sum {
		return nil, fmt.Errorf("move module: go.sum has not the sum %s of %s@%s", got.Sum, p.Module, p.Version)
	}
	return m, nil
}

// sumOf is the sum that a go.sum has of a module's source.
func sumOf(sums []byte, module, version string) string {
	for line := range strings.Lines(string(sums)) {
		if rest, ok := strings.CutPrefix(line, module+" "+version+" "); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

func (u Update) goCommand(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, append(slices.Clip(u.Environ), "GOWORK=off", "GOFLAGS=", "GO111MODULE=on")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		err = fmt.Errorf("go %s: %w\n%s", strings.Join(args[:2], " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.Bytes(), err
}

// lookAt says what a version of the plugins touches that no program decides: other products' files, and plugins that are new
// or gone in the source at dir.
func lookAt(p *Plugins, dir string) []string {
	var look []string
	var shipped []Shipped
	for _, c := range p.ComparedWith {
		shipped = append(shipped, Shipped{c.Product, normalise(c.Release)})
	}
	overlaps, _ := p.Check(shipped) // each is one that it was compared with
	for i, overlap := range overlaps {
		if place, ok := where[strings.ToLower(shipped[i].Product)]; ok {
			overlap += "; of another release look it up in " + place
		}
		look = append(look, overlap)
	}
	there := make(map[string]bool)
	for _, role := range []string{"main", "ipam", "meta"} {
		entries, _ := os.ReadDir(filepath.Join(dir, "plugins", role))
		for _, e := range entries {
			if e.IsDir() && e.Name() != "windows" {
				there[e.Name()] = true
				if !p.Has(e.Name()) {
					look = append(look, fmt.Sprintf("%s (%s) is new: stage it, or leave it out and say why", e.Name(), role))
				}
			}
		}
	}
	for _, l := range p.LeftOut {
		if !there[l.Name] {
			look = append(look, l.Name+" is left out, and is not there any more")
		}
	}
	return look
}

// writeAll gives each file its content, or none of them: all are written beside their places before the first is moved there,
// and one that cannot be moved takes back those before it.
func writeAll(files map[string][]byte) (err error) {
	type pending struct {
		path, tmp string
		old       []byte
		existed   bool
	}
	var all []pending
	defer func() {
		for _, p := range all {
			if rmErr := os.Remove(p.tmp); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
				err = errors.Join(err, rmErr)
			}
		}
	}()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		old, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		p := pending{name, name + ".chandler-new", old, err == nil}
		all = append(all, p)
		if err := os.WriteFile(p.tmp, files[name], 0o644); err != nil {
			return err
		}
	}
	for i, p := range all {
		if err := rename(p.tmp, p.path); err != nil {
			for _, done := range all[:i] {
				if done.existed {
					err = errors.Join(err, os.WriteFile(done.path, done.old, 0o644))
				} else {
					err = errors.Join(err, os.Remove(done.path))
				}
			}
			return err
		}
	}
	return nil
}

// rename is what a test makes fail.
var rename = os.Rename
