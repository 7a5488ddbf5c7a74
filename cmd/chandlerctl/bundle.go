package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/cli"
	"github.com/chandler-cni/chandler/internal/image"
	"github.com/chandler-cni/chandler/internal/pins"
	"github.com/chandler-cni/chandler/internal/refs"
	"github.com/chandler-cni/chandler/internal/source"
)

func newBundle(streams cli.Streams) *cobra.Command {
	cmd := cli.Group(&cobra.Command{
		Use:   "bundle",
		Short: "Make and check bundles of plugins",
		Long: "A bundle is a directory that holds CNI plugins and a manifest that describes each of them: what an image\n" +
			"carries to nodes, and what 'chandler stage' puts into a node's bin dir.",
	})
	cmd.AddCommand(newBundleBuild(streams), newBundleList(streams), newBundlePack(streams), newBundleRebuild(streams), newBundleVerify(streams))
	return cmd
}

// result is what the bundle commands print of a bundle.
type result struct {
	Path     string           `json:"path"`
	Digest   string           `json:"digest"` // of bundle.json
	Size     int64            `json:"size"`   // bytes of the executables; one that has several names counts once
	Manifest *bundle.Manifest `json:"manifest"`
}

func describe(path string, b *bundle.Bundle) result {
	r := result{Path: path, Digest: b.Digest, Manifest: b.Manifest}
	counted := make(map[string]bool)
	for _, p := range b.Manifest.Plugins {
		if !counted[p.SHA256] {
			counted[p.SHA256] = true
			r.Size += p.Size
		}
	}
	return r
}

// print writes the result, whose one line of text begins with what was done.
func (r result) print(w io.Writer, output, done string) error {
	if output == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	n, noun := len(r.Manifest.Plugins), "plugins"
	if n == 1 {
		noun = "plugin"
	}
	_, err := fmt.Fprintf(w, "%s %s: %d %s %s %s, %s (%s)\n", done, r.Path, n, noun, r.Manifest.Version, r.Manifest.Arch, size(r.Size), r.Digest)
	return err
}

// size spells a number of bytes in powers of ten.
func size(n int64) string {
	switch {
	case n < 1e3:
		return fmt.Sprintf("%d bytes", n)
	case n < 1e6:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}

// printMade opens the bundle that was made at path, as its next reader will, and prints what it is.
func printMade(w io.Writer, output, path string) error {
	b, err := bundle.Open(path)
	if err != nil {
		return fmt.Errorf("open bundle %s: %w", path, err)
	}
	defer b.Close()
	return describe(path, b).print(w, output, "bundle")
}

// hintFor says what to do about an error, where that is not plain from the error.
func hintFor(err error) string {
	var newer *bundle.NewerFormatError
	var digest *source.DigestError
	var pin *pins.NotPinnedError
	var toolchain *source.GoVersionError
	var again *pins.RepublishedError
	var hunk *source.HunkError
	var auth *image.AuthError
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "the plugins are compiled here: install Go (https://go.dev/dl) and have it in PATH"
	case errors.Is(err, bundle.ErrOccupied):
		return "remove it, or name another directory with --out"
	case errors.Is(err, bundle.ErrAbsent), errors.Is(err, bundle.ErrEmpty):
		return "'chandlerctl bundle build' and 'chandlerctl bundle pack' make bundles"
	case errors.Is(err, source.ErrMixed):
		return "pack a bundle for each architecture from a directory of its own"
	case errors.As(err, &digest):
		return "what was got is not the release: a page of a proxy, a damaged copy, or something worse"
	case errors.As(err, &toolchain):
		return "GOTOOLCHAIN=" + toolchain.Want + " in the environment has the Go command use that one"
	case errors.As(err, &again):
		return "find out from upstream why; until then the pin is what was looked at"
	case errors.As(err, &pin):
		return "--source module builds for every architecture"
	case errors.As(err, &hunk):
		return "the pinned source has moved: make the patch anew from what stands there now (docs/image.md says how)"
	case errors.As(err, &auth) && auth.Denied:
		return "the login is good and may not do this: ask for the right to write to the repository"
	case errors.As(err, &auth):
		return fmt.Sprintf("'docker login %[1]s' or 'podman login %[1]s' keeps a login that is used here", auth.Registry)
	case errors.Is(err, refs.ErrStaging):
		return "if no other rewrite is at work, copy back the files in old/ in it, where there is one, and remove it"
	case errors.As(err, &newer):
		return "use the chandlerctl that made this bundle, or a newer one"
	}
	return ""
}
