//go:build faults

package disk

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chandler-cni/chandler/test/rig"
)

// ring is what all tests share.
var ring struct {
	few      string // five of the fourteen, each a file of its own
	fewOlder string // the same with other bytes, which run all the same
	linked   string // three names of one file
	full     bool
	seed     uint64
}

var (
	fewNames    = []string{"host-local", "sbr", "static", "tuning", "vrf"}
	linkedNames = []string{"bridge", "static", "vlan"}
)

func TestMain(m *testing.M) {
	os.Exit(rig.Ring{
		Name:        "faults",
		Tools:       []string{"busybox", "cp", "mkfs.btrfs", "mkfs.ext4", "mkfs.xfs", "mount", "sh", "strace", "unshare"},
		FileSystems: []string{"btrfs", "ext4", "fuse", "tmpfs", "xfs"},
		Roles:       map[string]func() int{"disk": serveDisk},
		SetUp:       setUp,
		LastWords:   lastWords,
	}.Main(m))
}

func lastWords(took time.Duration) {
	if rig.Runs.Load() > 0 {
		fmt.Printf("faults ring: disk: %d chandler runs in %s, %s; FAULTS_SEED=%d\n", rig.Runs.Load(),
			took, cmp.Or(examined.String(), "no power cut"), ring.seed)
	}
}

func setUp() (err error) {
	ring.full = os.Getenv("FAULTS_FULL") == "1"
	if ring.seed, err = rig.Seed("FAULTS_SEED"); err != nil {
		return err
	}
	for name, at := range map[string]*string{"few": &ring.few, "few-older": &ring.fewOlder, "linked": &ring.linked} {
		*at = filepath.Join(rig.Dir, name)
	}
	return errors.Join(
		rig.Derive(ring.few, rig.Separate, rig.Version, fewNames, ""),
		rig.Derive(ring.fewOlder, rig.Separate, "v1.8.0", fewNames, "an older build"),
		rig.Derive(ring.linked, rig.Multicall, rig.Version, linkedNames, ""),
	)
}
