package chart

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// MultusModule is the Go module that Multus is, and that its manifest is a file of.
const MultusModule = "gopkg.in/k8snetworkplumbingwg/multus-cni.v4"

// The files of a checkout that have to agree on Multus' version.
const (
	manifestFile = "charts/multus/upstream/multus-daemonset-thick.yml"
	reliedOnFile = "charts/multus/files/relied-on.yaml"
	chartFile    = "charts/multus/Chart.yaml"
	moduleFile   = "upstream/multus/go.mod"
	moduleSums   = "upstream/multus/go.sum"

	manifestInModule = "deployments/multus-daemonset-thick.yml"
	maxManifest      = 1 << 20 // bytes
)

// Change is one file that an update had to do with.
type Change struct {
	Path string // in the checkout
	Was  string // what it said before, where that is one word
	Now  string
	Done string // changed, unchanged, absent
}

// Update moves a checkout to a version of Multus: the vendored manifest, the chart's appVersion and, where it exists, the
// Go module that pins Multus for the image. Nothing is written before everything the chart relies on has been found in
// the new manifest, and nothing at all where DryRun is set.
type Update struct {
	Root    string // of the checkout
	Version string // such as v4.3.0
	File    string // a manifest to take instead of the module's own
	URL     string // the same, over HTTP
	DryRun  bool
	Environ []string // the caller's, for the Go command

	tidy func(ctx context.Context, dir string) error // go mod tidy, unless a test says otherwise
}

// UnfitError says that a manifest lacks what the chart relies on, or has what it does not know.
type UnfitError struct{ Findings []error }

func (e *UnfitError) Error() string {
	return "upstream's manifest: " + errors.Join(e.Findings...).Error()
}

// CheckVersion reports why version is not that of a module.
func CheckVersion(version string) error {
	if !semver.IsValid(version) || semver.Canonical(version) != version {
		return fmt.Errorf("version %q: want one such as v4.3.0", version)
	}
	return nil
}

// Run does the update and returns what became of each file.
func (u *Update) Run(ctx context.Context) ([]Change, error) {
	if err := CheckVersion(u.Version); err != nil {
		return nil, err
	}
	data, err := u.fetch(ctx)
	if err != nil {
		return nil, err
	}
	if err := u.check(data); err != nil {
		return nil, err
	}
	writes := make(map[string][]byte)
	var changes []Change
	for _, step := range []func() (Change, []byte, error){
		func() (Change, []byte, error) { return u.replace(manifestFile, data) },
		u.appVersion,
		u.module,
	} {
		change, write, err := step()
		if err != nil {
			return nil, err
		}
		if write != nil {
			writes[change.Path] = write
		}
		changes = append(changes, change)
	}
	if u.DryRun {
		return changes, nil
	}
	for _, change := range changes {
		if write, ok := writes[change.Path]; ok {
			if err := os.WriteFile(filepath.Join(u.Root, change.Path), write, 0o644); err != nil {
				return nil, fmt.Errorf("write %s: %w", change.Path, err)
			}
		}
	}
	if _, ok := writes[moduleFile]; ok {
		tidy := u.tidy
		if tidy == nil {
			tidy = u.goModTidy
		}
		if err := tidy(ctx, filepath.Join(u.Root, filepath.Dir(moduleFile))); err != nil {
			return changes, fmt.Errorf("tidy %s, where the version has been changed: %w", moduleFile, err)
		}
	}
	return changes, nil
}

// fetch returns the manifest's bytes.
func (u *Update) fetch(ctx context.Context) ([]byte, error) {
	switch {
	case u.File != "":
		f, err := os.Open(u.File)
		if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		defer f.Close()
		return readAll(f, u.File)
	case u.URL != "":
		return get(ctx, u.URL)
	}
	dir, err := u.download(ctx)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(dir, manifestInModule))
	if err != nil {
		return nil, fmt.Errorf("read manifest of %s@%s: %w", MultusModule, u.Version, err)
	}
	defer f.Close()
	return readAll(f, f.Name())
}

func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("get manifest: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("get manifest: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get manifest: %s: %s", url, resp.Status)
	}
	return readAll(resp.Body, url)
}

func readAll(r io.Reader, name string) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	if len(data) > maxManifest {
		return nil, fmt.Errorf("read manifest: %s: more than %d bytes", name, maxManifest)
	}
	return data, nil
}

// download has the go command fetch the module, and returns its directory. The go command checks it against the checksum
// database; a sum that the checkout has already is held to as well.
func (u *Update) download(ctx context.Context) (string, error) {
	module := MultusModule + "@" + u.Version
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	cmd.Dir = os.TempDir() // outside any module, whose replacements would count
	cmd.Env = append(u.Environ[:len(u.Environ):len(u.Environ)], "GOWORK=off", "GOFLAGS=-mod=mod")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var got struct{ Dir, Sum, Error string }
	if jsonErr := json.Unmarshal(out, &got); err != nil || jsonErr != nil || got.Error != "" {
		return "", fmt.Errorf("download %s: %s", module, firstOf(got.Error, strings.TrimSpace(stderr.String()), fmt.Sprint(errors.Join(err, jsonErr))))
	}
	sums, err := os.ReadFile(filepath.Join(u.Root, moduleSums))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read %s: %w", moduleSums, err)
	}
	for line := range strings.Lines(string(sums)) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == MultusModule && fields[1] == u.Version && fields[2] != got.Sum {
			return "", fmt.Errorf("download %s: its sum is %s and %s has %s", module, got.Sum, moduleSums, fields[2])
		}
	}
	return got.Dir, nil
}

func (u *Update) check(data []byte) error {
	list, err := os.ReadFile(filepath.Join(u.Root, reliedOnFile))
	if err != nil {
		return fmt.Errorf("read what the chart relies on: %w", err)
	}
	relied, err := ParseReliedOn(list)
	if err != nil {
		return fmt.Errorf("read %s: %w", reliedOnFile, err)
	}
	manifest, err := ParseManifest(data)
	if err != nil {
		return fmt.Errorf("read manifest: %w", err)
	}
	if findings := manifest.Check(relied); findings != nil {
		return &UnfitError{findings}
	}
	return nil
}

// replace plans path to hold data.
func (u *Update) replace(path string, data []byte) (Change, []byte, error) {
	old, err := os.ReadFile(filepath.Join(u.Root, path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Change{}, nil, fmt.Errorf("read %s: %w", path, err)
	}
	if err == nil && bytes.Equal(old, data) {
		return Change{Path: path, Done: "unchanged"}, nil, nil
	}
	return Change{Path: path, Done: "changed"}, data, nil
}

var appVersionLine = regexp.MustCompile(`(?m)^appVersion: (\S+)$`)

func (u *Update) appVersion() (Change, []byte, error) {
	data, err := os.ReadFile(filepath.Join(u.Root, chartFile))
	if err != nil {
		return Change{}, nil, fmt.Errorf("read %s: %w", chartFile, err)
	}
	lines := appVersionLine.FindAllSubmatchIndex(data, -1)
	if len(lines) != 1 {
		return Change{}, nil, fmt.Errorf("read %s: %d lines of appVersion, not one", chartFile, len(lines))
	}
	from, to := lines[0][2], lines[0][3]
	c := Change{Path: chartFile, Was: string(data[from:to]), Now: u.Version, Done: "unchanged"}
	if c.Was == c.Now {
		return c, nil, nil
	}
	c.Done = "changed"
	return c, append(append(bytes.Clone(data[:from]), u.Version...), data[to:]...), nil
}

// module plans the move of the Go module that the image's Multus is built from. Its other requirements are dropped: go mod
// tidy takes them anew from Multus itself, so that a move down does not keep what a move up needed.
func (u *Update) module() (Change, []byte, error) {
	data, err := os.ReadFile(filepath.Join(u.Root, moduleFile))
	if errors.Is(err, fs.ErrNotExist) {
		return Change{Path: moduleFile, Done: "absent"}, nil, nil
	}
	if err != nil {
		return Change{}, nil, fmt.Errorf("read %s: %w", moduleFile, err)
	}
	mod, err := modfile.Parse(moduleFile, data, nil)
	if err != nil {
		return Change{}, nil, fmt.Errorf("read %s: %w", moduleFile, err)
	}
	c := Change{Path: moduleFile, Now: u.Version, Done: "unchanged"}
	var others []string
	for _, r := range mod.Require {
		if r.Mod.Path == MultusModule {
			c.Was = r.Mod.Version
		} else if r.Indirect {
			others = append(others, r.Mod.Path)
		}
	}
	if c.Was == "" {
		return Change{}, nil, fmt.Errorf("read %s: does not require %s", moduleFile, MultusModule)
	}
	if c.Was == c.Now {
		return c, nil, nil
	}
	c.Done = "changed"
	for _, path := range others {
		if err := mod.DropRequire(path); err != nil {
			return Change{}, nil, fmt.Errorf("edit %s: %w", moduleFile, err)
		}
	}
	if err := mod.AddRequire(MultusModule, u.Version); err != nil {
		return Change{}, nil, fmt.Errorf("edit %s: %w", moduleFile, err)
	}
	mod.Cleanup()
	write, err := mod.Format()
	if err != nil {
		return Change{}, nil, fmt.Errorf("edit %s: %w", moduleFile, err)
	}
	return c, write, nil
}

func (u *Update) goModTidy(ctx context.Context, dir string) error {
	cmd := exec.CommandContext(ctx, "go", "mod", "tidy")
	cmd.Dir = dir
	cmd.Env = append(u.Environ[:len(u.Environ):len(u.Environ)], "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

func firstOf(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}
