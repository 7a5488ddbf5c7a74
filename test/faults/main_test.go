//go:build faults

package faults

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/chandler-cni/chandler/test/rig"
)

const (
	seedEnv = "FAULTS_SEED" // what is drawn at random is drawn from it
	fullEnv = "FAULTS_FULL" // 1: nothing is drawn, everything is run
)

// ring is what all tests share.
var ring struct {
	dir      string // where all is that the ring makes
	chandler string
	seed     uint64
	full     bool

	names    []string // of the plugins in the following bundles
	bundle   string   // each a file of its own
	older    string   // the same with other bytes, which run all the same
	multi    string   // one file under all names
	reported []func() string
}

func TestMain(m *testing.M) {
	os.Exit(rig.Ring{
		Name:        "faults",
		Tools:       []string{"cp", "find", "git", "go", "install", "ln", "mkfs.ext4", "mount", "mv", "sh", "tar"},
		FileSystems: []string{"ext4", "tmpfs"},
		SetUp:       setUp,
		LastWords:   lastWords,
	}.Main(m))
}

func lastWords(took time.Duration) {
	for _, report := range ring.reported {
		if text := report(); text != "" {
			fmt.Println("faults ring:", text)
		}
	}
	fmt.Printf("faults ring: %d runs of chandler, %s on %d CPUs, seed %d, everything %v\n",
		rig.Runs.Load(), took, runtime.NumCPU(), ring.seed, ring.full)
}

func setUp() (err error) {
	ring.dir, ring.chandler = rig.Dir, rig.Chandler
	ring.full = os.Getenv(fullEnv) == "1"
	if ring.seed, err = rig.Seed(seedEnv); err != nil {
		return err
	}
	ring.names = []string{"static", "tuning"}
	ring.bundle, ring.older, ring.multi = filepath.Join(ring.dir, "bundle"), filepath.Join(ring.dir, "older"), filepath.Join(ring.dir, "multi")
	return errors.Join(
		rig.Derive(ring.bundle, rig.Separate, rig.Version, ring.names, ""),
		rig.Derive(ring.older, rig.Separate, "v1.8.0", ring.names, "an older build"),
		rig.Derive(ring.multi, rig.Multicall, rig.Version, ring.names, ""),
	)
}

// drawn is the source of what is drawn by lot for one case, whichever others are run.
func drawn(name string) *rand.Rand {
	return rand.New(rand.NewPCG(ring.seed, uint64(crc32.ChecksumIEEE([]byte(name)))))
}
