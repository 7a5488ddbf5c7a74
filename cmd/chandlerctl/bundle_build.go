package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/cli"
	"github.com/chandler-cni/chandler/internal/pins"
	"github.com/chandler-cni/chandler/internal/plugin"
	"github.com/chandler-cni/chandler/internal/source"
)

type bundleBuildOptions struct {
	source, form, arch string
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

The bundle appears at --out when it is whole, or not at all. Nothing, or an empty directory, may stand there before.

` + cli.ExitTable,
		Example: `  # for nodes of this machine's architecture
  chandlerctl bundle build --out out/bundle

  # for arm64, from a checkout elsewhere
  chandlerctl bundle build --arch arm64 --upstream ~/chandler/upstream --out out/bundle-arm64`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runBundleBuild(cmd.Context(), streams, opts)
		},
	}
	cli.Choice(cmd, &opts.source, "source", "module", "where the plugins come from: module", "module")
	cli.Choice(cmd, &opts.form, "form", source.Multicall,
		"how they are built: multicall (one executable under every name, an eighth of the bytes), separate (one each)", source.Multicall, source.Separate)
	cli.Choice(cmd, &opts.arch, "arch", runtime.GOARCH, "architecture of the nodes, as Go spells it", plugin.Arches()...)
	cli.Output(cmd, &opts.output)
	cmd.Flags().StringVar(&opts.out, "out", "", "directory to make the bundle at")
	cmd.Flags().StringVar(&opts.upstream, "upstream", "",
		"folder that holds pins.yaml and plugins/go.mod (default: upstream/ in the working directory or the nearest above it)")
	return cmd
}

func runBundleBuild(ctx context.Context, streams cli.Streams, opts bundleBuildOptions) error {
	if opts.out == "" {
		return cli.UsageError("--out is missing: name the directory to make the bundle at")
	}
	if opts.upstream == "" {
		var err error
		if opts.upstream, err = findUpstream(); err != nil {
			return err
		}
	}
	module, err := pinnedPlugins(opts.upstream, opts.arch, opts.form)
	if err != nil {
		return err
	}
	module.Progress = progressOn(streams.Err)
	if err := module.Bundle(ctx, opts.out); err != nil {
		return fmt.Errorf("build bundle: %w", err)
	}
	return printMade(streams.Out, opts.output, opts.out)
}

// pinnedPlugins is the module of the plugins that the pins in upstream choose.
func pinnedPlugins(upstream, arch, form string) (source.Module, error) {
	p, err := pins.Load(filepath.Join(upstream, pins.FileName))
	if err != nil {
		return source.Module{}, err
	}
	module := source.Module{
		Dir:     filepath.Join(upstream, pins.PluginsDir),
		Path:    p.Plugins.Module,
		Version: p.Plugins.Version,
		Form:    form,
		Arch:    arch,
		Environ: os.Environ(),
	}
	for _, s := range p.Plugins.Staged {
		module.Plugins = append(module.Plugins, source.Plugin{Name: s.Name, Role: s.Role, Package: p.Plugins.Package(s)})
	}
	return module, nil
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
