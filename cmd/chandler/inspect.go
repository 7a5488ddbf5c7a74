package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/cli"
	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin"
)

func newInspect(streams cli.Streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "inspect FILE|DIR...",
		Short: "Say of plugin files what they are, without running them",
		Long: `Say of each file, and of each file in a directory, what it is: version and how that is known, Go toolchain, architecture,
linking, digest, and where a link leads. Nothing is run, and a file is never trusted to be small or sane.

How a version is known:
  main module   the build information names the module that holds the main package, at a version
  dependency    the same, of the reference plugins that a multi-call program is made of
  -ldflags      the build information says what the linker was told to set
  ELF symbol    the variable that was set so is found by its symbol
  unknown       it is not; a stripped file built with -trimpath does not say

A version of another module than that of the reference plugins has that behind it (v1.9.5 of github.com/myorg/plugins), and one that is
no semantic version says so. 'chandler stage --policy newer' compares neither with the bundle's reference plugins, and treats them as unknown;
of a link it knows the version only if it does not lead out of the directory.

What a file says of itself proves nothing: its digest does. Hidden files of a directory are passed over.

` + exitTable,
		Example: `  chandler inspect /opt/cni/bin
  chandler inspect --output json /opt/cni/bin/bridge`,
		Args: cli.Args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runInspect(cmd.Context(), streams, output, args)
		},
	}
	cli.Output(cmd, &output)
	return cmd
}

// inspected is what inspect says of one name.
type inspected struct {
	Path        string             `json:"path"`
	LinkTo      string             `json:"linkTo,omitempty"` // what the link at the path says; all else is of the file it leads to
	Name        string             `json:"name,omitempty"`   // what it was built as
	Multicall   bool               `json:"multicall,omitempty"`
	Version     string             `json:"version,omitempty"`
	VersionFrom plugin.VersionFrom `json:"versionFrom,omitempty"`
	Module      string             `json:"module,omitempty"`     // whose version it is
	Comparable  bool               `json:"comparable,omitempty"` // it has an order, among the versions of that module
	Package     string             `json:"package,omitempty"`
	Go          string             `json:"go,omitempty"`
	Kind        plugin.Kind        `json:"kind,omitempty"`
	Arch        string             `json:"arch,omitempty"`
	Interpreter string             `json:"interpreter,omitempty"`
	Static      bool               `json:"static,omitempty"`
	Size        int64              `json:"size,omitempty"`
	SHA256      string             `json:"sha256,omitempty"`
	Problem     string             `json:"problem,omitempty"` // why it is no plugin, or could not be read
}

func runInspect(ctx context.Context, streams cli.Streams, output string, args []string) error {
	in := inspector{ctx: ctx, digests: make(map[[2]uint64]string)}
	for _, arg := range args {
		in.look(arg)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	var err error
	if output == "json" {
		err = writeJSON(streams.Out, in.found)
	} else {
		err = writeInspected(streams.Out, in.found)
	}
	if err == nil && in.failed {
		err = failed()
	}
	return err
}

// inspector collects what is found. failed is set when something could not be read.
type inspector struct {
	ctx     context.Context
	found   []inspected
	failed  bool
	digests map[[2]uint64]string // by device and inode: many names may be one file
}

// look inspects what the user named: a file, or all of a directory.
func (in *inspector) look(path string) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		d, err := hostdir.Open(filepath.Dir(path))
		if err != nil {
			in.fail(inspected{Path: path}, err)
			return
		}
		defer d.Close()
		in.add(d, filepath.Base(path), path, true)
		return
	}
	d, err := hostdir.Open(path)
	if err != nil {
		in.fail(inspected{Path: path}, err)
		return
	}
	defer d.Close()
	names, err := d.Names()
	if err != nil {
		in.fail(inspected{Path: path}, err)
		return
	}
	for _, name := range names {
		if !strings.HasPrefix(name, ".") && in.ctx.Err() == nil {
			in.add(d, name, filepath.Join(path, name), false)
		}
	}
}

func (in *inspector) fail(e inspected, err error) { in.absent(e, err, true) }

// add inspects one name of d. What is neither a file nor a link to one is worth telling in a directory, and a failure
// where it was asked for by name.
func (in *inspector) add(d *hostdir.Dir, name, path string, named bool) {
	e := inspected{Path: path}
	there, err := d.Stat(name)
	if err != nil {
		in.fail(e, err)
		return
	}
	if there.Kind == hostdir.Symlink {
		if e.LinkTo, err = d.Readlink(name); err != nil {
			in.fail(e, err)
			return
		}
		target, err := filepath.EvalSymlinks(path)
		if err != nil {
			in.absent(e, fmt.Errorf("link to %q: %w", e.LinkTo, bare(err)), named)
			return
		}
		parent, err := hostdir.Open(filepath.Dir(target))
		if err != nil {
			in.absent(e, err, named)
			return
		}
		defer parent.Close()
		d, name = parent, filepath.Base(target)
	}
	f, there, err := d.OpenFile(name)
	if errors.Is(err, hostdir.ErrNotRegular) {
		in.absent(e, fmt.Errorf("is a %s", there.Kind), named)
		return
	}
	if err != nil {
		in.fail(e, err)
		return
	}
	defer f.Close()
	in.read(e, f, there)
}

// absent enters a name that has no file.
func (in *inspector) absent(e inspected, err error, named bool) {
	e.Problem = err.Error()
	in.found = append(in.found, e)
	in.failed = in.failed || named
}

func (in *inspector) read(e inspected, f *os.File, there hostdir.Entry) {
	e.Size = there.Size
	if e.Size > plugin.MaxSize {
		e.Problem = fmt.Sprintf("%d bytes: too large for a plugin", e.Size)
		in.found = append(in.found, e)
		return
	}
	d, err := plugin.Describe(f, e.Size)
	var format *plugin.FormatError
	switch {
	case errors.Is(err, plugin.ErrNotExecutable), errors.As(err, &format):
		e.Problem = err.Error()
	case err != nil:
		in.fail(e, err)
		return
	default:
		e.Name, e.Multicall, e.Version, e.VersionFrom, e.Module = d.Name, d.Multicall, d.Version, d.VersionFrom, d.Module
		_, e.Comparable = plugin.Compare(d.Version, d.Version)
		e.Package, e.Go, e.Kind, e.Arch, e.Interpreter, e.Static = d.Package, d.Go, d.Kind, d.Arch, d.Interpreter, d.Static()
	}
	if e.SHA256, err = in.digest(f, there); err != nil {
		in.fail(e, err)
		return
	}
	in.found = append(in.found, e)
}

// digest reads the file once, whatever the number of its names.
func (in *inspector) digest(f *os.File, there hostdir.Entry) (string, error) {
	key := [2]uint64{there.Dev, there.Ino}
	if known, ok := in.digests[key]; ok {
		return known, nil
	}
	h := sha256.New()
	buf := make([]byte, 64<<10)
	for r := io.NewSectionReader(f, 0, there.Size); ; {
		if in.ctx.Err() != nil {
			return "", in.ctx.Err()
		}
		n, err := r.Read(buf)
		h.Write(buf[:n])
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", err
		}
	}
	in.digests[key] = hex.EncodeToString(h.Sum(nil))
	return in.digests[key], nil
}

// bare drops the path from an error that stands beside it.
func bare(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// writeInspected writes a line a file. Of the digest it has the first twelve digits.
func writeInspected(w io.Writer, found []inspected) error {
	tw := newTable(w)
	for _, e := range found {
		if e.Problem != "" {
			tableRow(tw, quoted(e.Path), quoted(e.Problem))
			continue
		}
		version := "version unknown"
		if e.Version != "" {
			version = fmt.Sprintf("%s (%s)", e.whose(), e.VersionFrom)
		}
		tableRow(tw, quoted(e.Path), version, dash(e.Go), dash(e.Arch), e.linking(), "sha256:"+e.SHA256[:12], strings.Join(e.remarks(), ", "))
	}
	return tw.Flush()
}

// whose is the version, with what keeps --policy newer from comparing it with that of a reference plugin.
func (e inspected) whose() string {
	text := e.Version
	if e.Module != plugin.ReferenceModule {
		text += " of " + e.Module
	}
	if !e.Comparable {
		text += ", not semantic"
	}
	return text
}

func (e inspected) linking() string {
	switch {
	case e.Static:
		return "static"
	case e.Kind == plugin.Script:
		return "script of " + quoted(e.Interpreter)
	}
	return "needs " + quoted(e.Interpreter)
}

// remarks are what is out of the ordinary.
func (e inspected) remarks() []string {
	var r []string
	if e.Multicall {
		r = append(r, "multi-call")
	}
	if e.Name != "" && e.Name != filepath.Base(e.Path) {
		r = append(r, "built as "+e.Name)
	}
	if e.LinkTo != "" {
		r = append(r, "links to "+quoted(e.LinkTo))
	}
	return r
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// quoted is a text of the node's in one word of one line, as it is where that is so already.
func quoted(s string) string {
	if strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsPrint(c) || c == utf8.RuneError }) {
		return fmt.Sprintf("%q", s)
	}
	return s
}
