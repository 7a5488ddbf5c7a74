package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chandler-cni/chandler/test/cluster/node"
)

// foreignNames are those that another installer writes too.
var foreignNames = []string{"portmap", "macvlan"}

// pods is how many pods are started while others write.
const (
	pods     = 200
	inFlight = 6
	fewer    = 40
	calls    = 1000
)

// foreign installs a DaemonSet that writes names into the plugins' directory again and again, and waits until it does.
func (p place) foreign(t *testing.T, how string, names ...string) (remove func()) {
	t.Helper()
	path := "/apis/apps/v1/namespaces/" + p.name + "/daemonsets"
	labels := node.Object{"app": "writer-" + how}
	args := []any{"write", how, "/host"}
	for _, n := range names {
		args = append(args, n)
	}
	if _, err := p.API.Create(path, node.Object{
		"apiVersion": "apps/v1", "kind": "DaemonSet",
		"metadata": node.Object{"name": "writer-" + how},
		"spec": node.Object{
			"selector": node.Object{"matchLabels": labels},
			"template": node.Object{"metadata": node.Object{"labels": labels}, "spec": node.Object{
				"terminationGracePeriodSeconds": 1,
				"containers": []any{node.Object{
					"name": "writer", "image": node.PauseImage, "args": args,
					"volumeMounts": []any{node.Object{"name": "bin", "mountPath": "/host"}},
				}},
				"volumes": []any{node.Object{"name": "bin", "hostPath": node.Object{"path": binDir}}},
			}},
		},
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, func() error {
		d, err := p.API.Get(path + "/writer-" + how)
		if err != nil {
			return err
		}
		if ready, _ := node.At(d, "status", "numberReady").(float64); ready != 1 {
			return errors.New("it is not running")
		}
		return nil
	})
	return func() {
		if err := p.API.Delete(path + "/writer-" + how); err != nil {
			t.Error(err)
		}
		eventually(t, time.Minute, func() error {
			left, err := p.API.Get(p.pods() + "?labelSelector=app%3Dwriter-" + how)
			if err != nil || len(node.List(left, "items")) > 0 {
				return fmt.Errorf("it is still running (%v)", err)
			}
			return nil
		})
	}
}

// stageAgain stages again and again until ctx is done, with the program and the bundle of the image, and has something done before
// each run.
func (c *cluster) stageAgain(ctx context.Context, t *testing.T, dir string, before func()) *sync.WaitGroup {
	var running sync.WaitGroup
	running.Go(func() {
		runs := 0
		for ; ctx.Err() == nil; runs++ {
			before()
			out, err := exec.Command(c.chandler, "stage", "--bundle", c.bundle, "--bin-dir", dir, "--create", "--termination-log=").CombinedOutput()
			if err != nil || strings.Contains(string(out), "failed to install") {
				// What another installer left torn or busy is the next run's to heal; a run never ends without saying what it did.
				t.Logf("staging run %d: %v: %s", runs, err, out)
			}
			time.Sleep(500 * time.Millisecond)
		}
		if runs < 5 {
			t.Errorf("only %d staging runs", runs)
		}
	})
	return &running
}

// many starts that many pods, a few at a time, on the networks in turn, and returns how many did not run and what was said
// of plugins.
func (p place) many(count int, prefix string, networks ...string) (failed int, said []string) {
	var lock sync.Mutex
	var wait sync.WaitGroup
	next := make(chan int)
	for range inFlight {
		wait.Go(func() {
			for i := range next {
				ok, events := p.tryPod(fmt.Sprintf("%s-%d", prefix, i), networks[i%len(networks)], 2*time.Minute)
				lock.Lock()
				if !ok {
					failed++
				}
				said = append(said, pluginFailures(events)...)
				lock.Unlock()
			}
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	wait.Wait()
	return failed, said
}

// calls runs a plugin that often, as Multus does, and counts how often it did not start or did not answer.
func (c *cluster) callsThatFail(name string) int {
	failed := 0
	for range calls {
		cmd := exec.Command(filepath.Join(c.Dir.Host(binDir), name))
		cmd.Env = []string{"CNI_COMMAND=VERSION"}
		if out, err := cmd.Output(); err != nil || !strings.Contains(string(out), "supportedVersions") {
			failed++
		}
	}
	return failed
}

func TestScenario06(t *testing.T) {
	scenario(t, 6, fmt.Sprintf("other installers write the same names while staging runs, and %d pods start", pods), func(t *testing.T) {
		ring.staging(t, true)
		p := ring.in(t, "shared")
		ipam := node.Object{"type": "host-local", "subnet": "10.59.0.0/16"}
		p.network(t, "lan", node.Object{"cniVersion": "1.0.0", "name": "shared-lan", "type": "bridge", "bridge": "shared0", "ipam": ipam})
		p.network(t, "mapped", node.Object{"cniVersion": "1.0.0", "name": "shared-mapped", "plugins": []any{
			node.Object{"type": "bridge", "bridge": "shared0", "ipam": ipam},
			node.Object{"type": "portmap", "snat": true, "capabilities": node.Object{"portMappings": true}},
		}})
		p.network(t, "mac", node.Object{"cniVersion": "1.0.0", "name": "shared-mac", "type": "macvlan", "master": "node0", "ipam": ipam})

		t.Run("by rename", func(t *testing.T) {
			remove := p.foreign(t, "rename", append([]string{"loopback"}, foreignNames...)...)
			ctx, cancel := context.WithCancel(t.Context())
			staging := ring.stageAgain(ctx, t, ring.Dir.Host(binDir), func() {})
			failed, said := p.many(pods, "renamed", "lan", "mapped", "mac")
			cancel()
			staging.Wait()
			remove()
			if failed > 0 || len(said) > 0 {
				t.Errorf("of %d pods %d did not start; of plugins it was said: %q", pods, failed, said)
			}
		})

		t.Run("in place", func(t *testing.T) {
			remove := p.foreign(t, "place", foreignNames...)
			// The slower the other one writes, the longer its files are torn. So it is compared with staging that has as much to do, on
			// the same disk, in another directory.
			elsewhere := ring.Dir.Host(binDir) + "-elsewhere"
			ctx, cancel := context.WithCancel(t.Context())
			staging := ring.stageAgain(ctx, t, elsewhere, func() {
				for _, name := range foreignNames {
					os.Remove(filepath.Join(elsewhere, name))
				}
			})
			beside := ring.callsThatFail("portmap")
			time.Sleep(3 * time.Second) // for the runs that there are to be
			cancel()
			staging.Wait()
			if err := os.RemoveAll(elsewhere); err != nil {
				t.Error(err)
			}
			ctx, cancel = context.WithCancel(t.Context())
			staging = ring.stageAgain(ctx, t, ring.Dir.Host(binDir), func() {})
			together := ring.callsThatFail("portmap")
			failed, said := p.many(fewer, "placed", "lan")
			cancel()
			staging.Wait()
			remove()
			if failed > 0 || len(said) > 0 {
				t.Errorf("of %d pods on names that only chandler writes %d did not start; of plugins it was said: %q", fewer, failed, said)
			}
			// The other one tears its own names in place; staging, which renames, must not make that much worse.
			t.Logf("of %d calls of portmap %d failed while staging was elsewhere, %d while it was in the same directory", calls, beside, together)
			if together > 3*beside+calls/5 {
				t.Error("staging makes it worse")
			}
			// Healed: the next staging puts the bundle's files back.
			if message := terminationMessage(ring.restart(t)); strings.Contains(message, "failed") || !strings.Contains(message, " 2 replaced, 12 unchanged") {
				t.Errorf("the next staging said %q", message)
			}
			for _, name := range foreignNames {
				if same, err := equal(filepath.Join(ring.Dir.Host(binDir), name), filepath.Join(ring.bundle, "bin", name)); err != nil || !same {
					t.Errorf("%s is not the bundle's (%v)", name, err)
				}
			}
		})
	})
}

func equal(a, b string) (bool, error) {
	one, err := os.ReadFile(a)
	if err != nil {
		return false, err
	}
	two, err := os.ReadFile(b)
	return string(one) == string(two), err
}
