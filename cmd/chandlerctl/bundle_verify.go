package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/cli"
)

type bundleVerifyOptions struct {
	path   string
	output string
}

func newBundleVerify(streams cli.Streams) *cobra.Command {
	var opts bundleVerifyOptions
	cmd := &cobra.Command{
		Use:   "verify DIR",
		Short: "Check every digest, mode, machine and name of a bundle",
		Long: `Verify checks that a bundle is what its manifest says: the digest, size, mode and kind of every plugin, the machine
it was built for, that the reference plugins are static, and that nothing else is there. Nothing is run.
Each finding is a line on stderr.

` + cli.ExitTable,
		Example: `  chandlerctl bundle verify out/bundle`,
		Args:    cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.path = args[0]
			return runBundleVerify(cmd.Context(), streams, opts)
		},
	}
	cli.Output(cmd, &opts.output)
	return cmd
}

func runBundleVerify(ctx context.Context, streams cli.Streams, opts bundleVerifyOptions) error {
	b, err := bundle.Open(opts.path)
	if err != nil {
		return fmt.Errorf("verify bundle %s: %w", opts.path, err)
	}
	defer b.Close()
	findings := b.Verify(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, finding := range findings {
		fmt.Fprintf(streams.Err, "chandlerctl: verify bundle %s: %v\n", opts.path, finding)
	}
	if len(findings) > 0 {
		return errSaid
	}
	return describe(opts.path, b).print(streams.Out, opts.output, "verified")
}
