package plugin

import (
	"testing"
)

// Each line is older than the one below it; versions in one line are of one release.
var inOrder = [][]string{
	{"v0.0.0-20200101000000-0123456789ab"},
	{"v0.9.0", "0.9", "v0.9.0+incompatible"},
	{"v1.1.1", "1.1.1+ds1-3+b5", "1.1.1-2ubuntu0.24.04.2"},
	{"v1.9.0", "v1.9"},
	{"v1.9.1-0.20251201000000-0123456789ab", "v1.9.1-0.20251201000000-0123456789ab+dirty"},
	{"v1.9.1-0.20251202000000-0123456789ab"},
	{"v1.9.1-alpha.1"},
	{"v1.9.1-beta", "v1.9.1-beta.0"},
	{"v1.9.1-rc9", "v1.9.1-rc.9", "1.9.1~rc9-1", "v1.9.1-rc9+k3s1"},
	{"v1.9.1-rc10"},
	{"v1.9.1-rc.10.0.20251203000000-0123456789ab"},
	{"v1.9.1", "1.9.1", "v1.9.1+k3s1", "v1.9.1-k3s1", "v1.9.1-rke2r3", "v1.9.1-rancher1", "v1.9.1-eksbuild.2", "v1.9.1-gke.100",
		"1.9.1-1.1", "v1.9.1+dirty", "1.9.1~bpo12+1", "1.9.1.4", "v1.9.1-preconfigured", "v1.9.1-0"},
	{"v1.9.1-3-g1a2b3c4", "v1.9.1-3-g1a2b3c4-dirty"},
	{"v1.9.1-12-g1a2b3c4"},
	{"v1.9.2-0.20260101000000-0123456789ab"},
	{"v1.9.10"},
	{"v1.10.0"},
	{"v2.0.0", "2.0.0-k8s1"},
}

func TestCompare(t *testing.T) {
	for i, line := range inOrder {
		for _, a := range line {
			for j, other := range inOrder {
				for _, b := range other {
					want := 0
					if i < j {
						want = -1
					} else if i > j {
						want = 1
					}
					if got, ok := Compare(a, b); !ok || got != want {
						t.Errorf("Compare(%q, %q) = %d, %v; want %d", a, b, got, ok, want)
					}
				}
			}
		}
	}
}

func TestCompareRefuses(t *testing.T) {
	for _, bad := range []string{"", "v", "v1", "unknown", "(devel)", "latest", "1.x", "v1.9.1rc1", "v01.9.1", "1.9.", "v1.9.1 ", "go1.26.8",
		"v1.9999999999999999999999.1", "-1.0"} {
		for _, pair := range [][2]string{{bad, "v1.9.1"}, {"v1.9.1", bad}, {bad, bad}} {
			if got, ok := Compare(pair[0], pair[1]); ok || got != 0 {
				t.Errorf("Compare(%q, %q) = %d, %v", pair[0], pair[1], got, ok)
			}
		}
	}
}

func FuzzCompare(f *testing.F) {
	for _, line := range inOrder {
		for _, v := range line {
			f.Add(v, "v1.9.1")
		}
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		ab, ok := Compare(a, b)
		if ba, okToo := Compare(b, a); ba != -ab || ok != okToo {
			t.Errorf("Compare(%q, %q) = %d, %v, and the other way round %d, %v", a, b, ab, ok, ba, okToo)
		}
		if self, ok := Compare(a, a); ok && self != 0 {
			t.Errorf("%q is %d against itself", a, self)
		}
	})
}
