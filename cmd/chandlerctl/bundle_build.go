package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/cli"
	"github.com/chandler-cni/chandler/internal/pins"
	"github.com/chandler-cni/chandler/internal/plugin"
	"github.com/chandler-cni/chandler/internal/source"
)

// The sources of the reference plugins.
const (
	moduleSource  = "module"
	releaseSource = "release"
)

type bundleBuildOptions struct {
	source, form, arch string
	url, file          string // of the release
	extra              []string
	upstream           string // the folder of the pins; empty: to be found
	out                string
	output             string
}

func newBundleBuild(streams cli.Streams) *cobra.Command {
	var opts bundleBuildOptions
	cmd := &cobra.Command{
		Use:   "build --out DIR",
		Short: "Make a bundle of the pinned reference plugins",
		Long: `Build makes a bundle of the CNI reference plugins that upstream/pins.yaml names.

From the source "module" it compiles them with the Go command, static and stripped, from the Go module that
upstream/plugins/go.mod requires; go.sum there verifies all of it. Modules that the Go command has no copy of are
downloaded as its own settings say (GOPROXY and the like). Two builds with one Go toolchain are equal to the byte.

From the source "release" it takes them out of upstream's own tarball, as they are. The tarball's SHA-256 is compared with
the pinned one before anything in it is looked at, wherever it comes from: upstream, --url, or a copy that --file names.
Proxies are those of the environment (HTTPS_PROXY and the like).

With --extra plugins of your own go into the bundle beside them (whereabouts, sriov, a bond plugin), with the role extra. They are
not run here. On a node they have to start; of the reference plugins more is demanded.

The bundle appears at --out when it is whole, or not at all. Nothing, or an empty directory, may stand there before.

` + cli.ExitTable,
		Example: `  # for nodes of this machine's architecture
  chandlerctl bundle build --out out/bundle

  # for arm64, from a checkout elsewhere
  chandlerctl bundle build --arch arm64 --upstream ~/chandler/upstream --out out/bundle-arm64

  # upstream's own bits, by way of a mirror
  chandlerctl bundle build --source release --url 'https://mirror.example.com/cni/{version}/{arch}.tgz' --out out/bundle

  # with a plugin of your own
  chandlerctl bundle build --extra whereabouts=bin/whereabouts --out out/bundle`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.source == releaseSource && cmd.Flags().Changed("form") {
				return cli.UsageError("--form is for --source module: a release is taken as it is")
			}
			return runBundleBuild(cmd.Context(), streams, opts)
		},
	}
	cli.Choice(cmd, &opts.source, "source", moduleSource, "where the plugins come from: module (compiled here) or release (upstream's tarball)", moduleSource, releaseSource)
	cli.Choice(cmd, &opts.form, "form", source.Multicall,
		"how they are built: multicall (one executable under every name, an eighth of the bytes), separate (one each)", source.Multicall, source.Separate)
	cli.Choice(cmd, &opts.arch, "arch", runtime.GOARCH, "architecture of the nodes, as Go spells it", plugin.Arches()...)
	cmd.Flags().StringVar(&opts.url, "url", "",
		"release: address to get the tarball from, with {arch} and {version} in it (default: upstream's)")
	cmd.Flags().StringVar(&opts.file, "file", "", "release: a copy of the tarball; nothing is downloaded")
	cli.Output(cmd, &opts.output)
	cmd.Flags().StringVar(&opts.out, "out", "", "directory to make the bundle at")
	cmd.Flags().StringArrayVar(&opts.extra, "extra", nil,
		"NAME=FILE: a plugin of your own that goes into the bundle too, of a name that is not of the reference set; can be repeated")
	addUpstream(cmd, &opts.upstream)
	return cmd
}

// addUpstream adds the flag that names the folder of the pins. Empty: to be found.
func addUpstream(cmd *cobra.Command, p *string) {
	cmd.Flags().StringVar(p, "upstream", "",
		"folder that holds pins.yaml and plugins/go.mod (default: upstream/ in the working directory or the nearest above it)")
}

func (o bundleBuildOptions) check() error {
	switch {
	case o.out == "":
		return cli.UsageError("--out is missing: name the directory to make the bundle at")
	case o.source != releaseSource && o.url != "":
		return cli.UsageError("--url is for --source release")
	case o.source != releaseSource && o.file != "":
		return cli.UsageError("--file is for --source release")
	case o.url != "" && o.file != "":
		return cli.UsageError("--url and --file exclude each other")
	}
	if o.url != "" {
		if _, err := pins.ExpandURL(o.url, o.arch, "v0.0.0"); err != nil {
			return cli.UsageError("--url: %w", err)
		}
	}
	return nil
}

func runBundleBuild(ctx context.Context, streams cli.Streams, opts bundleBuildOptions) error {
	if err := opts.check(); err != nil {
		return err
	}
	if opts.upstream == "" {
		var err error
		if opts.upstream, err = findUpstream(); err != nil {
			return err
		}
	}
	p, err := pins.Load(filepath.Join(opts.upstream, pins.FileName))
	if err != nil {
		return err
	}
	extras, err := opts.extras(&p.Plugins)
	if err != nil {
		return err
	}
	if opts.source == releaseSource {
		err = opts.release(ctx, streams, &p.Plugins, extras)
	} else {
		err = opts.module(ctx, streams, &p.Plugins, extras)
	}
	if err != nil {
		return fmt.Errorf("build bundle: %w", err)
	}
	return printMade(streams.Out, opts.output, opts.out)
}

// extras reads --extra. A name of the reference set would be one of its plugins that nobody has compared.
func (o bundleBuildOptions) extras(p *pins.Plugins) ([]source.Extra, error) {
	var extras []source.Extra
	for _, arg := range o.extra {
		name, file, ok := strings.Cut(arg, "=")
		switch {
		case !ok || file == "":
			return nil, cli.UsageError("--extra %q: want NAME=FILE", arg)
		case p.Has(name):
			return nil, cli.UsageError("--extra %s: a plugin of the reference set has that name", name)
		case slices.ContainsFunc(extras, func(e source.Extra) bool { return e.Name == name }):
			return nil, cli.UsageError("--extra %s: named twice", name)
		}
		if err := plugin.CheckName(name); err != nil {
			return nil, cli.UsageError("--extra: %w", err)
		}
		extras = append(extras, source.Extra{Name: name, File: file})
	}
	return extras, nil
}

func (o bundleBuildOptions) module(ctx context.Context, streams cli.Streams, p *pins.Plugins, extras []source.Extra) error {
	module := pinnedModule(p, o.upstream, o.arch, o.form)
	module.Extras = extras
	module.Progress = progressOn(streams.Err)
	return module.Bundle(ctx, o.out)
}

func (o bundleBuildOptions) release(ctx context.Context, streams cli.Streams, p *pins.Plugins, extras []source.Extra) error {
	sum, err := p.ReleaseDigest(o.arch)
	if err != nil {
		return err
	}
	r := source.Release{
		Module:   p.Module,
		Version:  p.Version,
		Arch:     o.arch,
		SHA256:   sum,
		Plugins:  sources(p),
		Extras:   extras,
		File:     o.file,
		Progress: bytesOn(streams.Err),
	}
	if r.URL, err = pins.ExpandURL(pins.ReleaseURL, o.arch, p.Version); err != nil {
		return err
	}
	if o.url != "" {
		if r.Mirror, err = pins.ExpandURL(o.url, o.arch, p.Version); err != nil {
			return err
		}
	}
	return r.Bundle(ctx, o.out)
}

// sources are the plugins that are staged, and where each is built from.
func sources(p *pins.Plugins) []source.Plugin {
	var plugins []source.Plugin
	for _, s := range p.Staged {
		plugins = append(plugins, source.Plugin{Name: s.Name, Role: s.Role, Package: p.Package(s)})
	}
	return plugins
}

// pinnedPlugins is the module of the plugins that the pins in upstream choose.
func pinnedPlugins(upstream, arch, form string) (source.Module, error) {
	p, err := pins.Load(filepath.Join(upstream, pins.FileName))
	if err != nil {
		return source.Module{}, err
	}
	return pinnedModule(&p.Plugins, upstream, arch, form), nil
}

func pinnedModule(p *pins.Plugins, upstream, arch, form string) source.Module {
	return source.Module{
		Dir:     filepath.Join(upstream, pins.PluginsDir),
		Path:    p.Module,
		Version: p.Version,
		Plugins: sources(p),
		Form:    form,
		Arch:    arch,
		Environ: os.Environ(),
	}
}

// findUpstream looks for the pins in the working directory and upwards.
func findUpstream() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		upstream := filepath.Join(dir, pins.Folder)
		if _, err := os.Stat(filepath.Join(upstream, pins.FileName)); err == nil {
			return upstream, nil
		}
		if dir == filepath.Dir(dir) {
			return "", cli.UsageError("no %s/%s in %s or above it: name the folder that holds the pins with --upstream", pins.Folder, pins.FileName, wd)
		}
	}
}
