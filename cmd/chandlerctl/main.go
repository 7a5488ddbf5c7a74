// Command chandlerctl makes and checks, on a workstation and in CI, what the chandler of the nodes works with.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, os.Args[1:]))
}

// run executes one command line and returns its exit code.
func run(ctx context.Context, streams cli.Streams, args []string) int {
	root := newRoot(streams)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil && !errors.Is(err, errSaid) {
		fmt.Fprintln(streams.Err, "chandlerctl:", err)
		if hint := hintFor(err); hint != "" {
			fmt.Fprintln(streams.Err, "hint:", hint)
		}
	}
	return cli.Code(err)
}

// errSaid is the cause of an exit code when everything has been said already.
var errSaid = errors.New("said")

func newRoot(streams cli.Streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "chandlerctl",
		Short: "Make, check and ship the bundles of CNI plugins that chandler stages",
		Long: "chandlerctl makes, checks and ships what chandler brings to nodes: bundles of CNI plugins.\n" +
			"It runs on a workstation and in CI, never on a node.\n\n" + cli.ExitTable,
		Version:       cli.Version(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	cli.Group(root)
	cli.Prepare(root, streams)
	root.AddCommand(newBundle(streams), newChart(streams), newImage(streams), newPins(streams), newRefs(streams))
	return root
}
