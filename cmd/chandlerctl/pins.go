package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/cli"
	"github.com/chandler-cni/chandler/internal/pins"
)

func newPins(streams cli.Streams) *cobra.Command {
	cmd := cli.Group(&cobra.Command{
		Use:   "pins",
		Short: "Check and move the versions that a checkout has chosen",
	})
	cmd.AddCommand(newPinsCheck(streams), newPinsUpdate(streams))
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

func newPinsUpdate(streams cli.Streams) *cobra.Command {
	var u pins.Update
	cmd := &cobra.Command{
		Use:   "update plugins VERSION",
		Short: "Move the pins of the reference plugins to another version",
		Long: `Update moves upstream/pins.yaml and upstream/plugins to a version of the reference plugins, such as v1.9.1: the digests of the
release's tarballs, which it takes from the .sha256 files beside them, the module's version, and go.mod and go.sum by way of
the Go command. Comments stay. Everything is written, or nothing. A release that has other bytes than those that are pinned for
the same version is refused.

What is left to a person is printed: other products that write the same files, plugins that are new or gone.

` + cli.ExitTable,
		Example: `  chandlerctl pins update plugins v1.9.1
  chandlerctl pins update plugins v1.9.1 --url 'https://mirror.example.com/cni/{version}/cni-plugins-linux-{arch}-{version}.tgz'`,
		Args:      cli.Args(cobra.ExactArgs(2)),
		ValidArgs: []string{"plugins"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] != "plugins" {
				return cli.UsageError("unknown pin %q: there is only plugins", args[0])
			}
			u.Version = args[1]
			return runPinsUpdate(cmd.Context(), streams, u)
		},
	}
	addUpstream(cmd, &u.Folder)
	cmd.Flags().StringVar(&u.URL, "url", "", "address of the tarballs, with {arch} and {version} in it; .sha256 behind it is that of the digest (default: upstream's)")
	cmd.Flags().BoolVar(&u.DryRun, "dry-run", false, "say what would change and change nothing")
	return cmd
}

func runPinsUpdate(ctx context.Context, streams cli.Streams, u pins.Update) error {
	if err := pins.CheckVersion(u.Version); err != nil {
		return cli.UsageError("%w", err)
	}
	if u.URL != "" {
		if _, err := pins.ExpandURL(u.URL, "amd64", u.Version); err != nil {
			return cli.UsageError("--url: %w", err)
		}
	}
	if u.Folder == "" {
		var err error
		if u.Folder, err = findUpstream(); err != nil {
			return err
		}
	}
	u.Environ = os.Environ()
	done, err := u.Run(ctx)
	if err != nil {
		return fmt.Errorf("update pins: %w", err)
	}
	for _, c := range done.Changes {
		if c.Was == c.Now {
			fmt.Fprintf(streams.Out, "%s: %s, unchanged\n", c.What, c.Now)
		} else {
			fmt.Fprintf(streams.Out, "%s: %s, now %s\n", c.What, c.Was, c.Now)
		}
	}
	for _, line := range done.Look {
		fmt.Fprintf(streams.Out, "look at: %s\n", line)
	}
	return nil
}
