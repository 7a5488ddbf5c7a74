package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/cli"
	"github.com/chandler-cni/chandler/internal/pins"
	"github.com/chandler-cni/chandler/internal/source"
)

type bundleRebuildOptions struct {
	path, upstream string
	check          bool
}

func newBundleRebuild(streams cli.Streams) *cobra.Command {
	var opts bundleRebuildOptions
	cmd := &cobra.Command{
		Use:   "rebuild --check DIR",
		Short: "Prove a bundle: build it once more from the source it names, and compare",
		Long: `Rebuild --check builds the plugins of a bundle once more, from the Go module, in the form and for the architecture that
its manifest names, and compares the digest of each, the licences and the SBOM. Each difference is a line on stderr.

The Go toolchain has to be the one that the manifest names: another one makes other bytes, which would prove nothing. The
other modules are those of upstream/plugins/go.mod: for a bundle of an older checkout, name that one's with --upstream.
Plugins of the role extra are not built from this source and not compared.

` + cli.ExitTable,
		Example: `  chandlerctl bundle rebuild --check out/bundle`,
		Args:    cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.path = args[0]
			return runBundleRebuild(cmd.Context(), streams, opts)
		},
	}
	cmd.Flags().BoolVar(&opts.check, "check", false, "compare, and change nothing")
	addUpstream(cmd, &opts.upstream)
	return cmd
}

func runBundleRebuild(ctx context.Context, streams cli.Streams, opts bundleRebuildOptions) error {
	if !opts.check {
		return cli.UsageError("--check is missing: to make a bundle there is 'chandlerctl bundle build'")
	}
	b, err := bundle.Open(opts.path)
	if err != nil {
		return fmt.Errorf("check bundle %s: %w", opts.path, err)
	}
	defer b.Close()
	module, err := source.ModuleOf(b.Manifest)
	if err != nil {
		return fmt.Errorf("check bundle %s: %w", opts.path, err)
	}
	if opts.upstream == "" {
		if opts.upstream, err = findUpstream(); err != nil {
			return err
		}
	}
	module.Dir, module.Environ, module.Progress = filepath.Join(opts.upstream, pins.PluginsDir), os.Environ(), progressOn(streams.Err)
	differences, err := module.Check(ctx, opts.path)
	if err != nil {
		return fmt.Errorf("check bundle %s: %w", opts.path, err)
	}
	for _, d := range differences {
		fmt.Fprintf(streams.Err, "chandlerctl: check bundle %s: %v\n", opts.path, d)
	}
	if len(differences) > 0 {
		return errSaid
	}
	extras := ""
	if n := len(b.Manifest.Plugins) - len(module.Plugins); n > 0 {
		extras = fmt.Sprintf("; %d extra not compared", n)
	}
	_, err = fmt.Fprintf(streams.Out, "rebuilt %s: %d plugins %s %s from %s with %s, equal to the byte (%s)%s\n", opts.path,
		len(module.Plugins), b.Manifest.Version, b.Manifest.Arch, b.Manifest.Source.Module, b.Manifest.Source.Go, b.Digest, extras)
	return err
}
