package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/cli"
	"github.com/chandler-cni/chandler/internal/pins"
)

func newPins(streams cli.Streams) *cobra.Command {
	cmd := cli.Group(&cobra.Command{
		Use:   "pins",
		Short: "Check the versions that a checkout has chosen",
	})
	cmd.AddCommand(newPinsCheck(streams))
	return cmd
}

func newPinsCheck(streams cli.Streams) *cobra.Command {
	var file string
	var args []string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the pins file, and whether the plugins were compared with what is shipped",
		Long: "Reads the pins file strictly. With --shipped it also says whether the staged plugins were compared with that release\n" +
			"of a product that writes some of the same names, and if not, what to look up, what to decide and where to write it.\n\n" +
			"  chandlerctl pins check --shipped talos=v1.13.6\n" +
			"  chandlerctl pins check --shipped kube-ovn=@values.yaml#/global/images/kubeovn/tag\n\n" + cli.ExitTable,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			p, err := pins.Load(file)
			if err != nil {
				return err
			}
			var shipped []pins.Shipped
			for _, arg := range args {
				s, err := pins.ParseShipped(arg)
				if err != nil {
					return cli.UsageError("--shipped: %w", err)
				}
				shipped = append(shipped, s)
			}
			said, err := p.Plugins.Check(shipped)
			for _, line := range said {
				fmt.Fprintln(streams.Out, line)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&file, "pins", filepath.Join(pins.Folder, pins.FileName), "the pins file")
	cmd.Flags().StringArrayVar(&args, "shipped", nil, "a release that is shipped too: PRODUCT=RELEASE, or PRODUCT=@FILE#/PATH to read it from a YAML file")
	return cmd
}
