package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/mod/sumdb/dirhash"
)

// MultusDir is the folder of upstream/ that holds the module that pins Multus, and the patches it is built with.
const MultusDir = "multus"

// multusModule is the module's path; the programs are those upstream's DaemonSet of the thick plugin runs or installs, by
// the package each is built from and the name that upstream's image gives it.
const multusModule = "gopkg.in/k8snetworkplumbingwg/multus-cni.v4"

var multusPrograms = []Plugin{
	{Name: "install_multus", Package: multusModule + "/cmd/install_multus"},
	{Name: "multus-daemon", Package: multusModule + "/cmd/multus-daemon"},
	{Name: "multus-shim", Package: multusModule + "/cmd/multus-shim"},
	{Name: "passthru", Package: multusModule + "/cmd/passthru-cni"},
}

// Multus is a copy of the Multus that a go.mod requires, with patches applied to it. The module's cached copy is never written.
//
// It is a module of its own in a temporary folder, which replaces Multus by the changed copy. go.sum there holds everything
// else to its release, and what was copied was held to it before the first patch was applied.
type Multus struct {
	Version string   // that the go.mod requires
	Sum     string   // of the source before it was changed, as in go.sum
	Patches []string // that were applied, in order
	Tree    string   // the changed source

	patchDir string
	module   Module // the temporary one
	tmp      string
}

// NewMultus makes the copy from dir, which holds go.mod, go.sum and patches/*.patch. The patches are applied in the order of
// their names; one that does not apply exactly is the error, and names the hunk. environ is as in Module. The caller closes it.
func NewMultus(ctx context.Context, dir string, environ []string) (_ *Multus, err error) {
	m := &Multus{patchDir: filepath.Join(dir, "patches")}
	if m.tmp, err = os.MkdirTemp("", "chandler-build-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	pinned := Module{Dir: dir, Path: multusModule, Plugins: multusPrograms, Environ: environ}
	cached, err := m.find(ctx, pinned)
	if err != nil {
		return nil, fmt.Errorf("read module: %w", err)
	}
	m.module = Module{Dir: filepath.Join(m.tmp, "module"), Path: multusModule, Plugins: multusPrograms, Environ: environ}
	m.Tree = filepath.Join(m.module.Dir, "multus")
	if err := os.CopyFS(m.Tree, os.DirFS(cached)); err != nil {
		return nil, fmt.Errorf("copy %s: %w", multusModule, err)
	}
	// The Go command holds what it downloads to go.sum, and not what has lain in its cache since.
	sum, err := dirhash.HashDir(m.Tree, multusModule+"@"+m.Version, dirhash.Hash1)
	if err != nil {
		return nil, fmt.Errorf("hash the copy of %s: %w", multusModule, err)
	}
	if sum != m.Sum {
		return nil, fmt.Errorf("%s is not the source of %s@%s: its sum is %s, not the %s of go.sum; 'go clean -modcache' removes it",
			cached, multusModule, m.Version, sum, m.Sum)
	}
	if err := m.applyPatches(); err != nil {
		return nil, err
	}
	return m, m.writeModule(dir)
}

// Close removes the copy.
func (m *Multus) Close() error { return os.RemoveAll(m.tmp) }

// find learns what pinned requires, has it downloaded and verified, and returns the folder of its source.
func (m *Multus) find(ctx context.Context, pinned Module) (string, error) {
	g, err := pinned.newGoCommand(ctx, m.tmp)
	if err != nil {
		return "", fmt.Errorf("find the Go toolchain: %w", err)
	}
	version, err := g.run(ctx, "list", "-m", "-f", "{{.Version}}", multusModule)
	if err != nil {
		return "", err
	}
	pinned.Version = strings.TrimSpace(string(version))
	linked, err := pinned.linkedModules(ctx, g)
	if err != nil {
		return "", err
	}
	m.Version, m.Sum = pinned.Version, linked[multusModule].Sum
	return linked[multusModule].Dir, nil
}

func (m *Multus) applyPatches() error {
	entries, err := os.ReadDir(m.patchDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read patches: %w", err)
	}
	tree, err := os.OpenRoot(m.Tree)
	if err != nil {
		return err
	}
	defer tree.Close()
	for _, e := range entries { // in order of their names
		if path.Ext(e.Name()) != ".patch" {
			return fmt.Errorf("read patches: %s is none", filepath.Join(m.patchDir, e.Name()))
		}
		text, err := os.ReadFile(filepath.Join(m.patchDir, e.Name()))
		if err != nil {
			return fmt.Errorf("read patches: %w", err)
		}
		p, err := ParsePatch(e.Name(), text)
		if err != nil {
			return err
		}
		if err := p.Apply(tree); err != nil {
			return err
		}
		m.Patches = append(m.Patches, e.Name())
	}
	return nil
}

// writeModule makes the temporary module: the one in dir, with Multus replaced by the copy.
func (m *Multus) writeModule(dir string) error {
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return err
	}
	// A relative path, since it stands in the build information of every program.
	mod = fmt.Appendf(mod, "\nreplace %s => ./%s\n", multusModule, filepath.Base(m.Tree))
	sums, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(m.module.Dir, "go.mod"), mod, 0o644),
		os.WriteFile(filepath.Join(m.module.Dir, "go.sum"), sums, 0o644))
}

// Build compiles the programs for arch, as GOARCH spells it, into out/bin, and puts the licences of what they are linked
// from into out/licenses and the patches into out/patches. Nothing, or an empty directory, may stand at out.
func (m *Multus) Build(ctx context.Context, arch, out string) error {
	module := m.module
	module.Arch = arch
	g, err := module.newGoCommand(ctx, m.tmp)
	if err != nil {
		return fmt.Errorf("find the Go toolchain: %w", err)
	}
	state := "unchanged"
	if len(m.Patches) > 0 {
		state = "patched"
	}
	const vars = multusModule + "/pkg/multus."
	flags := fmt.Sprintf("-s -w -X %[1]sversion=%[2]s -X %[1]sgitTreeState=%[3]s -X %[1]scommit=%[4]s -X %[1]sdate=none",
		vars, m.Version, state, m.Sum)
	d, err := newProgramDir(out)
	if err != nil {
		return err
	}
	// All at once: they share most of their packages.
	args := []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", d.bin + string(filepath.Separator)}
	for _, p := range multusPrograms {
		args = append(args, p.Package)
	}
	if _, err := g.run(ctx, args...); err != nil {
		return err
	}
	for _, p := range multusPrograms {
		if built := path.Base(p.Package); built != p.Name {
			if err := os.Rename(filepath.Join(d.bin, built), filepath.Join(d.bin, p.Name)); err != nil {
				return err
			}
		}
	}
	linked, err := module.listModules(ctx, g)
	if err != nil {
		return fmt.Errorf("read module: %w", err)
	}
	if err := addLicenses(d, g, linked); err != nil {
		return err
	}
	for _, name := range m.Patches {
		text, err := os.ReadFile(filepath.Join(m.patchDir, name))
		if err != nil {
			return err
		}
		if err := d.file(path.Join("patches", name), text); err != nil {
			return err
		}
	}
	return nil
}

// Program is an executable of a checkout's own module, built as it stands there.
type Program struct {
	Dir     string // of the checkout
	Package string // relative to it, as ./cmd/chandler
	Environ []string
}

// Build compiles the program for arch into out/bin, and puts the licences of what it is linked from, and the checkout's
// own, into out/licenses. Nothing, or an empty directory, may stand at out.
func (p Program) Build(ctx context.Context, arch, out string) (err error) {
	tmp, err := os.MkdirTemp("", "chandler-build-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	module := Module{Dir: p.Dir, Plugins: []Plugin{{Package: p.Package}}, Arch: arch, Environ: p.Environ}
	g, err := module.newGoCommand(ctx, tmp)
	if err != nil {
		return fmt.Errorf("find the Go toolchain: %w", err)
	}
	linked, err := module.listModules(ctx, g)
	if err != nil {
		return fmt.Errorf("read module: %w", err)
	}
	d, err := newProgramDir(out)
	if err != nil {
		return err
	}
	// Unlike the others it says which commit of which repository it is, where Git knows.
	if _, err := g.run(ctx, "build", "-trimpath", "-buildvcs=auto", "-ldflags", "-s -w",
		"-o", filepath.Join(d.bin, path.Base(p.Package)), p.Package); err != nil {
		return err
	}
	return addLicenses(d, g, linked)
}

// programDir is a directory of programs: bin/, and what goes with them.
type programDir struct{ dir, bin string }

func newProgramDir(out string) (programDir, error) {
	d := programDir{dir: out, bin: filepath.Join(out, "bin")}
	if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
		return d, &fs.PathError{Op: "build", Path: out, Err: errors.New("is there already and is not empty")}
	}
	return d, os.MkdirAll(d.bin, 0o755)
}

// License keeps a licence's text.
func (d programDir) License(name string, text []byte) error {
	return d.file(path.Join("licenses", name), text)
}

func (d programDir) file(name string, text []byte) error {
	at := filepath.Join(d.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	return os.WriteFile(at, text, 0o644)
}
