package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/cli"
)

func newBundle(streams cli.Streams) *cobra.Command {
	cmd := cli.Group(&cobra.Command{
		Use:   "bundle",
		Short: "Make and check bundles of plugins",
	})
	cmd.AddCommand(newBundleVerify(streams))
	return cmd
}

func newBundleVerify(streams cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "verify DIR",
		Short: "Check every digest, mode, machine and name of a bundle",
		Args:  cli.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := bundle.Open(args[0])
			if err != nil {
				return err
			}
			defer b.Close()
			return errors.Join(b.Verify(cmd.Context())...)
		},
	}
}

func hintFor(error) string { return "" }
