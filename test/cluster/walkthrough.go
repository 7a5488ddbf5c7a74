package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/chandler-cni/chandler/test/cluster/node"
)

// A page is prose and commands. A command is shown as it is typed, with what it printed; quiet ones are run and not shown.
type section struct {
	prose   string
	command string
	quiet   bool
	// missable is quiet too, and may fail by chance: then all is done again.
	missable bool
}

var errMissed = errors.New("the pod was started while Multus was being replaced")

const networkAndPod = `apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata:
  name: lan
spec:
  config: |
    {
      "cniVersion": "1.0.0", "name": "lan", "type": "bridge", "bridge": "lan0",
      "ipam": {"type": "host-local", "subnet": "10.55.0.0/24"}
    }
---
apiVersion: v1
kind: Pod
metadata:
  name: first
  annotations:
    k8s.v1.cni.cncf.io/networks: lan
spec:
  containers:
    - {name: main, image: "` + node.PauseImage + `", args: [serve, "7000"]}
`

var walkthrough = []section{
	{prose: `# From a pod that hangs to a pod that runs

This is what one sees, on a single node with Kubernetes, containerd and a primary network of ` + "`ptp`" + ` and ` + "`host-local`" + `. The page is
made by ` + "`make walkthrough`" + `: it starts such a node on the machine, types what is typed here, and writes down what comes back.
` + "`make cluster-up`" + ` gives you the same node to try it yourself.

## The failure

Multus, without staging:
`},
	{command: "helm install multus charts/multus --namespace kube-system --set stageCniPlugins=false | head -n 5"},
	{quiet: true, command: "kubectl -n kube-system rollout status daemonset/kube-multus-ds --timeout=120s && until test -e /etc/cni/net.d/00-multus.conf; do sleep .2; done"},
	{prose: "A network of the plugin `bridge`, and a pod that wants an interface in it:\n"},
	{command: "cat first.yaml"},
	{command: "kubectl apply -f first.yaml"},
	{quiet: true, command: `until kubectl get events | grep -q 'failed to find plugin'; do sleep .2; done`},
	{prose: "The pod does not start. Its event names the plugin and the directory:\n"},
	{command: "kubectl get pod first"},
	{command: `kubectl get events --field-selector reason=FailedCreatePodSandBox -o jsonpath='{.items[0].message}' | grep -o 'failed to find plugin.*\]'`},
	{prose: "On the node there is what the primary network needs, what Multus installed, and no more:\n"},
	{command: "ls /opt/cni/bin"},
	{prose: "## The cure\n"},
	// While one Multus is replaced by the next, a pod starts without its interfaces; right after a try there is time.
	{quiet: true, command: `n() { kubectl get events --field-selector reason=FailedCreatePodSandBox -o jsonpath='{range .items[*]}{.metadata.resourceVersion} {end}'; }; was=$(n); until test "$(n)" != "$was"; do sleep .2; done`},
	{command: "helm upgrade multus charts/multus --namespace kube-system --set distribution=generic | head -n 5"},
	{command: "kubectl -n kube-system rollout status daemonset/kube-multus-ds --timeout=120s"},
	{prose: "The init container says in its termination message what it did, which is also in `kubectl describe pod`:\n"},
	{command: `kubectl -n kube-system get pods -l name=multus -o jsonpath='{.items[0].status.initContainerStatuses[1].state.terminated.message}'`},
	{command: "ls /opt/cni/bin"},
	{quiet: true, command: "kubectl wait --for=condition=Ready pod/first --timeout=120s"},
	{missable: true, command: `kubectl get pod first -o jsonpath='{.metadata.annotations}' | grep -q network-status`},
	{prose: "The same pod runs; nobody touched it. The kubelet had gone on trying:\n"},
	{command: "kubectl get pod first"},
	{command: `kubectl get pod first -o jsonpath='{.metadata.annotations.k8s\.v1\.cni\.cncf\.io/network-status}'`},
	{prose: `A pod that the kubelet tries in the seconds between the old Multus and the new one starts with its primary network alone, and
without this annotation: Multus takes its configuration away when it ends. Delete such a pod, and it is made anew.

## What to look at

Whether a node's files are the bundle's, from the Multus pod on it, which has the bundle and the directory:
`},
	{command: "kubectl -n kube-system exec daemonset/kube-multus-ds -- /usr/bin/chandler verify --bin-dir /opt/cni/bin"},
	{prose: "What was there before and was replaced is kept, on the node:\n"},
	{command: "find /opt/cni/bin/.chandler/originals -type f"},
	{prose: "A restart with nothing changed writes nothing:\n"},
	{command: "kubectl -n kube-system rollout restart daemonset/kube-multus-ds"},
	{command: "kubectl -n kube-system rollout status daemonset/kube-multus-ds --timeout=120s"},
	{command: `kubectl -n kube-system get pods -l name=multus -o jsonpath='{.items[0].status.initContainerStatuses[1].state.terminated.message}'`},
}

// walk runs the walkthrough on a node of its own, from the root of the checkout, and writes the page.
func walk(ctx context.Context, dir node.Dir, image, page string, progress io.Writer) error {
	for tries := 1; ; tries++ {
		err := walkOnce(ctx, dir, image, page, progress)
		if !errors.Is(err, errMissed) || tries == 5 {
			return err
		}
		fmt.Fprintln(progress, "once more:", err)
	}
}

func walkOnce(ctx context.Context, dir node.Dir, image, page string, progress io.Writer) error {
	n, err := node.Start(ctx, dir, progress)
	if err != nil {
		return err
	}
	defer n.Stop()
	if err := n.Import(ctx, image); err != nil {
		return err
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	// The commands are typed in a folder that has the charts and the pod, as a user's would.
	folder := filepath.Join(dir.State(), "walkthrough")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := os.Symlink(filepath.Join(root, "charts"), filepath.Join(folder, "charts")); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "first.yaml"), []byte(networkAndPod), 0o644); err != nil {
		return err
	}
	var out strings.Builder
	shown := false // a block of commands is open
	for _, s := range walkthrough {
		if s.prose != "" {
			if shown {
				out.WriteString("```\n\n")
				shown = false
			}
			out.WriteString(s.prose + "\n")
			continue
		}
		printed, err := typed(ctx, n, folder, s.command)
		if err != nil && s.missable {
			return errMissed
		}
		if err != nil {
			return err
		}
		if s.quiet || s.missable {
			continue
		}
		if !shown {
			out.WriteString("```\n")
			shown = true
		}
		fmt.Fprintf(&out, "$ %s\n%s", s.command, printed)
		if printed != "" && !strings.HasSuffix(printed, "\n") {
			out.WriteString("\n")
		}
		fmt.Fprintln(progress, "$", s.command)
	}
	if shown {
		out.WriteString("```\n")
	}
	return os.WriteFile(page, []byte(out.String()), 0o644)
}

func typed(ctx context.Context, n *node.Node, folder, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := n.Command(ctx, "sh", "-c", `cd "$0" && eval "$1"`, folder, command)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s%s", command, err, stderr.String(), stdout.String())
	}
	return stdout.String(), nil
}
