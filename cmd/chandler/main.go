// Command chandler brings CNI plugins to the node that it runs on, from an init container or by hand.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/chandler-cni/chandler/internal/cli"
	"github.com/chandler-cni/chandler/internal/stage"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// A reader that has gone away makes a write fail; it does not end the program before its last words.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	syscall.Umask(0o077) // every mode is set, but what is made has to be ours to open until then
	os.Exit(run(ctx, cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, os.Args[1:]))
}

// run executes one command line and returns its exit code. With --init that is 0 whatever happens: an init container that
// never completes would leave the node without the daemon behind its CNI shim.
func run(ctx context.Context, streams cli.Streams, args []string) (code int) {
	lenient := initMode(args)
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(streams.Err, "chandler: panic: %v\n%s", p, debug.Stack())
			code = cli.Failed
			if lenient {
				code = lastWords(streams, args, taskOf(args).Break("", fmt.Sprintf("panic: %v", p)))
			}
		}
	}()
	root := newRoot(streams)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	code = cli.Code(err)
	if err == nil || isSaid(err) {
		if lenient {
			return cli.OK
		}
		return code
	}
	if lenient && hasReport(root, args) {
		what := err.Error()
		if code == cli.Usage {
			what = "wrong usage: " + what
		}
		return lastWords(streams, args, taskOf(args).Refuse("", what))
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	fmt.Fprintln(streams.Err, "chandler:", err)
	if lenient {
		return cli.OK
	}
	return code
}

// hasReport says whether a command line is for staging or restoring, or for something that this program does not know and may
// be that: only then do its last words belong in the termination log.
func hasReport(root *cobra.Command, args []string) bool {
	cmd, _, err := root.Find(args)
	return err != nil || cmd == root || cmd.Name() == string(stage.Staging) || cmd.Name() == string(stage.Restoring)
}

// taskOf says which of the two a command line is for, by hand: it may be one that cannot be parsed.
func taskOf(args []string) stage.Task {
	for _, arg := range args {
		if task := stage.Task(arg); task == stage.Staging || task == stage.Restoring {
			return task
		}
	}
	return stage.Staging
}

// lastWords says on stderr and in the termination log why the work was not done, and succeeds.
func lastWords(streams cli.Streams, args []string, why *stage.Report) int {
	text := why.TextWithin(stage.TextLimit)
	fmt.Fprint(streams.Err, text)
	writeTermination(streams, terminationPath(args), text)
	return cli.OK
}

const exitTable = `Exit codes of every command:
  0  done; for stage and restore also when plugins failed, so that an init container completes
  1  stage --strict: not every plugin is in place; restore --strict: not every plugin could be restored
     stage, restore, originals: the bin dir cannot be used; restore, originals: a name is not known
     originals: not every file could be listed or dropped
     verify: not as the bundle says; inspect: a file cannot be read
     a signal came before there was a result
  2  wrong usage: nothing was attempted
With --init it is 0 in every case, wrong usage and a panic included; what ends the process itself is beyond it (a signal
before it runs, a limit too low to run in).`

func newRoot(streams cli.Streams) *cobra.Command {
	root := cli.Group(&cobra.Command{
		Use:   "chandler",
		Short: "Bring the CNI plugins that Multus delegates to onto this node, and keep them right",
		Long: "chandler brings a bundle of CNI plugins to the directory of this node that Multus searches, whole and checked,\n" +
			"keeps what it replaced, and says what it did. It needs no network and no API server.\n\n" + exitTable,
		Version:       cli.Version(),
		SilenceErrors: true,
		SilenceUsage:  true,
	})
	cli.Prepare(root, streams)
	root.PersistentFlags().Bool(initFlag, false, "exit 0 in every case and, to stage or restore, require the bin dir to be a mount point; for init containers")
	root.AddCommand(newInspect(streams), newOriginals(streams), newRestore(streams), newStage(streams), newVerify(streams))
	return root
}
