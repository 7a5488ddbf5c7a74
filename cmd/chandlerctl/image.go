package main

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/cli"
	"github.com/chandler-cni/chandler/internal/image"
	"github.com/chandler-cni/chandler/internal/source"
)

// imageRepository is where the project's own images are, and what an image that is not pushed is called after.
const imageRepository = "ghcr.io/chandler-cni/multus"

func newImage(streams cli.Streams) *cobra.Command {
	cmd := cli.Group(&cobra.Command{
		Use:   "image",
		Short: "Make the image that brings Multus, the plugins and chandler to nodes",
	})
	cmd.AddCommand(newImageBuild(streams))
	return cmd
}

type imageBuildOptions struct {
	out, push, name   string
	platforms         []string
	bundles           []string
	form              string
	upstream          string // the folder of the pins; empty: to be found
	version, revision string
	plainHTTP         bool
	output            string
}

func newImageBuild(streams cli.Streams) *cobra.Command {
	var opts imageBuildOptions
	cmd := &cobra.Command{
		Use:   "build (--out DIR | --push REF) [flags]",
		Short: "Build the image, and write or push it",
		Long: `Build makes an OCI image index with an image for each platform: Multus, built from its pinned module with the patches in
upstream/multus/patches; a bundle of the CNI reference plugins; and chandler, built from the checkout that holds the
pins. No distribution and no Docker is needed or contained. Two builds of one checkout have one digest.

--out writes an OCI layout: a directory, which skopeo reads, or with a name that ends with .tar an archive, which
'ctr images import' reads. --push sends the image to a registry, with the login that 'docker login' or 'podman login' has
kept. What the registry has is not sent again; a request that fails for a reason that may pass is made again.

The result is the image's digest, or what it can be pulled by if it was pushed. What is in the image goes to stderr.

` + cli.ExitTable,
		Example: `  # both platforms, for the nodes of an air-gapped cluster
  chandlerctl image build --out multus.tar
  ctr --namespace k8s.io images import multus.tar

  # to a registry
  chandlerctl image build --push registry.example.com/cni/multus:v4.3.0

  # with plugins of one's own
  chandlerctl image build --platform linux/amd64 --bundle amd64=out/bundle --out out/image`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runImageBuild(cmd.Context(), streams, opts)
		},
	}
	f := cmd.Flags()
	f.StringVar(&opts.out, "out", "", "directory, or archive if it ends with .tar, to write the image to")
	f.StringVar(&opts.push, "push", "", "repository and tag to push the image to")
	f.StringSliceVar(&opts.platforms, "platform", []string{"linux/amd64", "linux/arm64"}, "platforms to build for")
	f.StringArrayVar(&opts.bundles, "bundle", nil, "ARCH=DIR: the bundle for an architecture, instead of building one; once for each")
	cli.Choice(cmd, &opts.form, "form", source.Multicall, "how the plugins are built: multicall or separate", source.Multicall, source.Separate)
	f.StringVar(&opts.upstream, "upstream", "",
		"folder of a checkout that holds pins.yaml and multus/ (default: upstream/ in the working directory or the nearest above it)")
	f.StringVar(&opts.name, "name", "", "what the image is called in --out (default: as in --push, else "+imageRepository+" and the version)")
	f.StringVar(&opts.version, "image-version", "", "version that the labels say (default: that of Multus)")
	f.StringVar(&opts.revision, "revision", "", "commit that the labels say (default: that of the checkout, if nothing in it is changed)")
	f.BoolVar(&opts.plainHTTP, "plain-http", false, "push without TLS; a registry on the loopback needs no such leave")
	cli.Output(cmd, &opts.output)
	return cmd
}

// imagePlan is the options, checked.
type imagePlan struct {
	imageBuildOptions
	arches  []string
	bundles map[string]string // by architecture
	created time.Time
}

// plan finds everything that can be wrong with the options before minutes are spent on compiling.
func (o imageBuildOptions) plan() (imagePlan, error) {
	p := imagePlan{imageBuildOptions: o, bundles: make(map[string]string)}
	if o.out == "" && o.push == "" {
		return p, cli.UsageError("neither --out nor --push: say where the image goes")
	}
	for _, name := range o.platforms {
		arch, ok := strings.CutPrefix(name, "linux/")
		if !ok || !slices.Contains([]string{"amd64", "arm64"}, arch) {
			return p, cli.UsageError("platform %q: want linux/amd64 or linux/arm64", name)
		}
		if slices.Contains(p.arches, arch) {
			return p, cli.UsageError("platform %s is named twice", name)
		}
		p.arches = append(p.arches, arch)
	}
	if len(p.arches) == 0 {
		return p, cli.UsageError("--platform names none")
	}
	slices.Sort(p.arches) // the order they are named in makes no other image
	for _, b := range o.bundles {
		arch, dir, ok := strings.Cut(b, "=")
		switch {
		case !ok || dir == "":
			return p, cli.UsageError("bundle %q: want ARCH=DIR", b)
		case !slices.Contains(p.arches, arch):
			return p, cli.UsageError("bundle %q: linux/%s is not among the platforms", b, arch)
		case p.bundles[arch] != "":
			return p, cli.UsageError("two bundles for %s", arch)
		}
		p.bundles[arch] = dir
	}
	for _, of := range []struct{ flag, value, ref string }{
		{"push", o.push, o.push}, {"name", o.name, o.name}, {"image-version", o.version, imageName(o.version)},
	} {
		if of.value == "" {
			continue
		}
		if _, err := image.CheckName(of.ref); err != nil {
			return p, cli.UsageError("--%s %q: %w", of.flag, of.value, err)
		}
	}
	if o.out != "" {
		if err := image.CheckOut(o.out); err != nil {
			return p, err
		}
	}
	if p.upstream == "" {
		var err error
		if p.upstream, err = findUpstream(); err != nil {
			return p, err
		}
	}
	var err error
	if p.upstream, err = filepath.Abs(p.upstream); err != nil { // its parent is the checkout
		return p, err
	}
	// https://reproducible-builds.org/specs/source-date-epoch
	if s := os.Getenv("SOURCE_DATE_EPOCH"); s != "" {
		seconds, err := strconv.ParseInt(s, 10, 64)
		if err != nil || seconds < 0 {
			return p, cli.UsageError("SOURCE_DATE_EPOCH %q: want seconds since 1970", s)
		}
		p.created = time.Unix(seconds, 0)
	}
	return p, nil
}

func runImageBuild(ctx context.Context, streams cli.Streams, opts imageBuildOptions) (err error) {
	plan, err := opts.plan()
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "chandler-image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	spec, err := plan.compile(ctx, streams, tmp)
	if err != nil {
		return err
	}
	img, err := image.Build(ctx, spec)
	if err != nil {
		return fmt.Errorf("build image: %w", err)
	}
	if err := printContents(streams.Err, img); err != nil {
		return err
	}
	result := imageResult{Digest: img.Digest, Version: spec.Version, Out: plan.out, Platforms: img.Platforms}
	if plan.out != "" {
		name, err := image.CheckName(cmp.Or(plan.name, plan.push, imageName(spec.Version)))
		if err != nil {
			return fmt.Errorf("name image: %w", err)
		}
		if err := img.WriteLayout(plan.out, name); err != nil {
			return fmt.Errorf("write image: %w", err)
		}
		result.Name = name
	}
	if plan.push != "" {
		progress, done := pushProgressOn(streams.Err)
		push := image.Push{PlainHTTP: plan.plainHTTP, Progress: progress}
		result.Reference, err = push.Push(ctx, img, plan.push)
		done()
		if err != nil {
			return err
		}
	}
	return result.print(streams.Out, plan.output)
}

// compile builds everything that goes into the image, into tmp.
func (p imagePlan) compile(ctx context.Context, streams cli.Streams, tmp string) (_ image.Spec, err error) {
	step := func(string, int, int) {}
	if progress := progressOn(streams.Err); progress != nil {
		step = progress
	}
	multus, err := source.NewMultus(ctx, filepath.Join(p.upstream, source.MultusDir), os.Environ())
	if err != nil {
		return image.Spec{}, fmt.Errorf("prepare multus: %w", err)
	}
	defer func() { err = errors.Join(err, multus.Close()) }()
	chandler := source.Program{Dir: filepath.Dir(p.upstream), Package: "./cmd/chandler", Environ: os.Environ()}

	spec := image.Spec{Version: cmp.Or(p.version, multus.Version), Revision: p.revision, Created: p.created}
	at, steps := 0, 3*len(p.arches)-len(p.bundles)
	do := func(what, arch string, build func(ctx context.Context, arch, out string) error) (string, error) {
		at++
		step(what+" linux/"+arch, at, steps)
		out := filepath.Join(tmp, arch, what)
		if err := build(ctx, arch, out); err != nil {
			return "", fmt.Errorf("build %s for linux/%s: %w", what, arch, err)
		}
		return out, nil
	}
	for _, arch := range p.arches {
		part := image.Platform{Arch: arch, Bundle: p.bundles[arch]}
		if part.Bundle == "" {
			if part.Bundle, err = do("plugins", arch, p.buildPlugins); err != nil {
				return spec, err
			}
		}
		if part.Multus, err = do("multus", arch, multus.Build); err != nil {
			return spec, err
		}
		if part.Chandler, err = do("chandler", arch, chandler.Build); err != nil {
			return spec, err
		}
		spec.Revision = cmp.Or(spec.Revision, revisionOf(filepath.Join(part.Chandler, "bin/chandler")))
		spec.Platforms = append(spec.Platforms, part)
	}
	return spec, nil
}

func (p imagePlan) buildPlugins(ctx context.Context, arch, out string) error {
	module, err := pinnedPlugins(p.upstream, arch, p.form)
	if err != nil {
		return err
	}
	return module.Bundle(ctx, out)
}

// imageName is what an image of a version is called: a plus sign, which versions may have, cannot be in a tag.
func imageName(version string) string {
	return imageRepository + ":" + strings.ReplaceAll(version, "+", "-")
}

// revisionOf is the commit that a program was built from, if it says so and nothing had been changed since.
func revisionOf(program string) string {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return ""
	}
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if settings["vcs.modified"] == "true" {
		return ""
	}
	return settings["vcs.revision"]
}

// imageResult is what the command prints.
type imageResult struct {
	Digest    string           `json:"digest"`              // of the index
	Reference string           `json:"reference,omitempty"` // what a pushed image is pulled by
	Version   string           `json:"version"`
	Out       string           `json:"out,omitempty"`
	Name      string           `json:"name,omitempty"` // in Out
	Platforms []image.Contents `json:"platforms"`
}

func (r imageResult) print(w io.Writer, output string) error {
	if output == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	_, err := fmt.Fprintln(w, cmp.Or(r.Reference, r.Digest))
	return err
}

// printContents prints a table of what is in each platform's image.
func printContents(w io.Writer, img *image.Image) error {
	for _, c := range img.Platforms {
		fmt.Fprintf(w, "%s: %s compressed, %s in files\n", c.Platform, size(c.Compressed), size(c.Size))
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "  LAYER AND FILES\tSIZE\tCOMPRESSED")
		for _, l := range c.Layers {
			fmt.Fprintf(t, "  %s\t\t%s\n", l.Name, size(l.Compressed))
			for _, line := range lines(l) {
				fmt.Fprintf(t, "    %s\t%s\t\n", line.what, line.size)
			}
		}
		if err := t.Flush(); err != nil {
			return err
		}
		if c.Compressed > image.MaxCompressed {
			fmt.Fprintf(w, "warning: %s is larger than the %s that the image is meant to have at most\n", c.Platform, size(image.MaxCompressed))
		}
	}
	return nil
}

type line struct{ what, size string }

// lines are a layer's files. A folder of licences is one line, and so are all names of one file.
func lines(l image.Layer) []line {
	type folder struct{ files, bytes int64 }
	licenses := make(map[string]folder)
	names := make(map[string]int) // how many there are of a file, by the one that holds the bytes
	for _, f := range l.Files {
		names[cmp.Or(f.LinkTo, f.Path)]++
		if dir, _, ok := strings.Cut(f.Path, "/licenses/"); ok {
			licenses[dir] = folder{licenses[dir].files + 1, licenses[dir].bytes + f.Size}
		}
	}
	var out []line
	for _, f := range l.Files {
		dir, _, ok := strings.Cut(f.Path, "/licenses/")
		all, first := licenses[dir]
		switch {
		case ok && first:
			out = append(out, line{fmt.Sprintf("%s/licenses/... (%d files)", dir, all.files), size(all.bytes)})
			delete(licenses, dir)
		case ok:
		case f.LinkTo == "" && names[f.Path] > 1:
			out = append(out, line{fmt.Sprintf("%s (and %d more names)", f.Path, names[f.Path]-1), size(f.Size)})
		case f.LinkTo == "":
			out = append(out, line{f.Path, size(f.Size)})
		case names[f.LinkTo] == 1: // a symbolic link
			out = append(out, line{f.Path + " -> " + f.LinkTo, ""})
		}
	}
	return out
}
