package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/cli"
	"github.com/chandler-cni/chandler/internal/plugin"
	"github.com/chandler-cni/chandler/internal/stage"
)

type restoreFlags struct {
	options     stage.RestoreOptions
	termination string
	output      string
	strict      bool
}

func newRestore(streams cli.Streams) *cobra.Command {
	var f restoreFlags
	cmd := &cobra.Command{
		Use:   "restore",
		Short: "Take back what staging did to the bin dir",
		Long: `Take back what staging did to the bin dir: the newest original of each plugin gets its name back, the very file, with its
owner, mode, times, attributes and label; a plugin where nothing stood before is removed. Each name changes in one step.
What others have put there or written to since is left and reported; remove it and restore again, and the original comes
back. Afterwards nothing of chandler's is in the bin dir, unless the report names it. Interrupted, it can be run again. It
needs no bundle.

Drain the pods that use a plugin before it goes: without it their networks cannot be taken down, and they hang in Terminating.

stdout holds the result; failures are on stderr and in the termination log, in the same words.

` + exitTable,
		Example: `  chandler restore --bin-dir /opt/cni/bin --dry-run
  chandler restore --bin-dir /opt/cni/bin
  chandler restore --bin-dir /opt/cni/bin --only bridge,macvlan
  chandler restore --init --shown-as /opt/cni/bin      # in an init container, the host's directory at /host/opt/cni/bin`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkKept(cmd, f.options); err != nil {
				return err
			}
			f.options.RequireMount, _ = cmd.Flags().GetBool(initFlag)
			return runRestore(cmd.Context(), streams, f)
		},
	}
	flags := cmd.Flags()
	addKept(cmd, &f.options, &f.output)
	flags.StringVar(&f.termination, terminationFlag, defaultTermination, "file for the last words that kubectl describe shows; empty for none")
	flags.BoolVar(&f.strict, "strict", false, "exit 1 if any plugin could not be restored")
	flags.BoolVar(&f.options.DryRun, "dry-run", false, "say what is there and what would be done; change nothing")
	return cmd
}

// addKept adds the flags of the commands that work with what staging has kept.
func addKept(cmd *cobra.Command, o *stage.RestoreOptions, output *string) {
	flags := cmd.Flags()
	addBinDir(cmd, &o.BinDir, &o.ShownAs)
	flags.StringSliceVar(&o.Only, "only", nil, "these plugins only: NAME,...")
	flags.DurationVar(&o.LockWait, "lock-wait", lockWait, "how long to wait for a staging of the same bin dir")
	cli.Output(cmd, output)
}

// checkKept checks what addKept added. An empty list of names is most often a variable that was not set: it must not pass for all.
func checkKept(cmd *cobra.Command, o stage.RestoreOptions) error {
	if cmd.Flags().Changed("only") && len(o.Only) == 0 {
		return cli.UsageError("--only: want the names of plugins")
	}
	if o.BinDir == "" {
		return cli.UsageError("--bin-dir: want a directory")
	}
	if o.LockWait < 0 {
		return cli.UsageError("--lock-wait %s: want no less than 0", o.LockWait)
	}
	for _, name := range o.Only {
		if err := plugin.CheckName(name); err != nil {
			return cli.UsageError("--only %q: %s", name, err)
		}
	}
	return nil
}

// restoreRun is what tests make panic.
var restoreRun = stage.Restore

func runRestore(ctx context.Context, streams cli.Streams, f restoreFlags) error {
	report := restoreRun(ctx, f.options)
	report.Hints = hints(stage.Restoring, report, stage.Options{BinDir: f.options.BinDir})
	return finish(streams, report, f.options.DryRun, f.strict, f.termination, f.output)
}
