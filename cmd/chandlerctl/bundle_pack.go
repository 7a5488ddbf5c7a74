package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/cli"
	"github.com/chandler-cni/chandler/internal/plugin"
	"github.com/chandler-cni/chandler/internal/source"
)

type bundlePackOptions struct {
	from, version, arch string
	out                 string
	output              string
}

func newBundlePack(streams cli.Streams) *cobra.Command {
	var opts bundlePackOptions
	cmd := &cobra.Command{
		Use:   "pack --from DIR --version V --out DIR",
		Short: "Make a bundle of any executables",
		Long: `Pack makes a bundle of the executables in a directory: ELF files and scripts, each a plugin under its file's name.
They are not run. On a node, a packed plugin must be one that starts; of the reference plugins more is demanded.

A directory that holds anything else (a folder, a link, a text) is refused, and every such file named. The files' own
modes do not matter. The bundle appears at --out when it is whole, or not at all. Nothing, or an empty directory, may
stand there before.

` + cli.ExitTable,
		Example: `  # plugins of your own
  chandlerctl bundle pack --from bin/ --version v0.4.2 --out out/bundle

  # scripts say of no architecture what they run on
  chandlerctl bundle pack --from scripts/ --version 7 --arch arm64 --out out/bundle`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runBundlePack(cmd.Context(), streams, opts)
		},
	}
	cmd.Flags().StringVar(&opts.from, "from", "", "directory that holds the executables and nothing else")
	cmd.Flags().StringVar(&opts.version, "version", "", "what to call the version of the plugins")
	cli.Choice(cmd, &opts.arch, "arch", "",
		"architecture of the nodes, as Go spells it (default: the ELF files', or this machine's if there are only scripts)", plugin.Arches()...)
	cli.Output(cmd, &opts.output)
	cmd.Flags().StringVar(&opts.out, "out", "", "directory to make the bundle at")
	return cmd
}

func runBundlePack(ctx context.Context, streams cli.Streams, opts bundlePackOptions) error {
	switch {
	case opts.from == "":
		return cli.UsageError("--from is missing: name the directory that holds the executables")
	case opts.version == "":
		return cli.UsageError("--version is missing: say what to call the version of the plugins")
	case opts.out == "":
		return cli.UsageError("--out is missing: name the directory to make the bundle at")
	}
	if err := bundle.CheckVersion(opts.version); err != nil {
		return cli.UsageError("--version: %w", err)
	}
	dir := source.Dir{From: opts.from, Version: opts.version, Arch: opts.arch}
	if err := dir.Bundle(ctx, opts.out); err != nil {
		return fmt.Errorf("pack bundle: %w", err)
	}
	return printMade(streams.Out, opts.output, opts.out)
}
