// Command cluster keeps a real single-node Kubernetes on this machine for the tests, and for people.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/chandler-cni/chandler/test/cluster/node"
	"golang.org/x/sys/unix"
)

const usage = `cluster keeps a single-node Kubernetes in namespaces of its own.

  cluster build   build its programs, unless they are there
  cluster up      start it, print how to use it, and leave it running
  cluster hold    start it and stay: it ends with this process
  cluster down    end it and clear what it left
  cluster walkthrough PAGE   start one, do what the page tells of, and write the page
`

func main() {
	node.Main()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("cluster", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprint(stderr, usage); flags.PrintDefaults() }
	folder := flags.String("dir", "out/cluster", "the folder of all that is built and written")
	image := flags.String("image", "", "an archive of an image that the node is to have")
	source := flags.String("source", "test/cluster", "the folder of this program's source")
	if err := flags.Parse(args); err != nil {
		return err
	}
	path, err := filepath.Abs(*folder)
	if err != nil {
		return err
	}
	dir := node.Dir(path)
	switch flags.Arg(0) {
	case "build":
		return node.Build(ctx, dir, *source, stderr)
	case "hold":
		return hold(ctx, dir, *image, stdout)
	case "up":
		if err := node.Missing(); err != nil {
			return err
		}
		if err := node.Build(ctx, dir, *source, stderr); err != nil {
			return err
		}
		return up(dir, *image, stdout, stderr)
	case "walkthrough":
		if flags.NArg() != 2 {
			break
		}
		return walk(ctx, dir, *image, flags.Arg(1), stderr)
	case "down":
		return down(dir)
	}
	flags.Usage()
	return errors.New("wrong usage")
}

// holding is what a holder says last.
const holding = "holding"

// hold starts the node and stays for as long as it runs.
func hold(ctx context.Context, dir node.Dir, image string, stdout io.Writer) error {
	n, err := node.Start(ctx, dir, stdout)
	if err != nil {
		return err
	}
	if image != "" {
		if err := n.Import(ctx, image); err != nil {
			return err
		}
	}
	fmt.Fprintln(stdout, holding)
	<-n.Done()
	if ctx.Err() != nil {
		return nil
	}
	return errors.New("the node has ended; its logs are in " + dir.State() + "/log")
}

// up starts a holder that outlives this process, and waits until its node is Ready.
func up(dir node.Dir, image string, stdout, stderr io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(string(dir), "hold.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(self, "-dir", string(dir), "-image", image, "hold")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	read, err := os.Open(log.Name())
	if err != nil {
		return err
	}
	defer read.Close()
	in := bufio.NewReader(read)
	for {
		line, err := in.ReadString('\n')
		if line == holding+"\n" {
			break
		}
		fmt.Fprint(stderr, line)
		if err == nil {
			continue
		}
		select {
		case err := <-ended:
			rest, _ := io.ReadAll(in)
			return fmt.Errorf("%w\n%s", err, rest)
		case <-time.After(100 * time.Millisecond):
		}
	}
	state := dir.State()
	fmt.Fprintf(stdout, `The node runs; process %d holds it. As root:

  %[2]s/kubectl get pods -A
  %[2]s/helm install multus charts/multus -n kube-system --set distribution=generic
  %[2]s/enter ls /opt/cni/bin     any command on the node; none is a shell

Its files are below %[2]s/root, the logs in %[2]s/log. make cluster-down ends it.
`, cmd.Process.Pid, state)
	return nil
}

// down ends the holder, and with it the node, and clears what is left on disk and in cgroups.
func down(dir node.Dir) error {
	holder, err := dir.Holder()
	if err != nil {
		return err
	}
	if holder != 0 {
		if err := unix.Kill(holder, unix.SIGTERM); err != nil {
			return err
		}
		for deadline := time.Now().Add(30 * time.Second); holder != 0; {
			if time.Now().After(deadline) {
				return fmt.Errorf("process %d does not end", holder)
			}
			time.Sleep(50 * time.Millisecond)
			if holder, err = dir.Holder(); err != nil {
				return err
			}
		}
	}
	return node.Clear(dir)
}
