package stage

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin"
	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
)

// builtAs is a plugin's file that says it is of a version of the reference plugins.
func builtAs(name, version, note string) []byte {
	return plugintest.Built(nodeArch, "go1.23", name+note, "path\t"+plugin.ReferenceModule+"/plugins/main/"+name,
		"mod\t"+plugin.ReferenceModule+"\t"+version+"\th1:x")
}

func built(name, version string) file {
	return file{name, bundle.Main, builtAs(name, version, " as released")}
}

// debianBuild says who built it and not of which version it is.
func debianBuild(name string) []byte {
	return plugintest.Built(nodeArch, "go1.19.8", name, "path\t"+plugin.ReferenceModule+"/plugins/main/"+name, "build\t-trimpath=true")
}

// What each policy makes of everything that can stand under a name.
func TestPolicies(t *testing.T) {
	release := built("bridge", "v1.9.1")
	b := packed(t, "v1.9.1", release)
	file := func(data []byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) { write(t, path, string(data), 0o755) }
	}
	kind := func(k hostdir.Kind) func(t *testing.T, path string) {
		return func(t *testing.T, path string) { put(t, path, k) }
	}
	const is = "as released"
	for name, test := range map[string]struct {
		there                         func(t *testing.T, path string)
		replace, newer, keep, missing string // action and cause; keep is newer with unknown versions kept
	}{
		"absent": {nil, "new", "new", "new", "new"},
		"equal":  {file(release.data), "unchanged", "unchanged", "unchanged", "unchanged"},
		"mode": {func(t *testing.T, path string) { write(t, path, string(release.data), 0o600) },
			"replaced", "replaced", "replaced", "kept policy missing, different (mode 0600, not 0755)"},
		"older": {file(builtAs("bridge", "v1.6.2", is)), "replaced", "replaced", "replaced", "kept policy missing, v1.6.2 (go1.23)"},
		"suffix, older": {file(builtAs("bridge", "v1.9.0+k3s1", is)), "replaced", "replaced", "replaced",
			"kept policy missing, v1.9.0+k3s1 (go1.23)"},
		"patched": {file(builtAs("bridge", "v1.9.1", "patched")), "replaced", "kept v1.9.1 (same version, different build)",
			"kept v1.9.1 (same version, different build)", "kept policy missing, v1.9.1 (go1.23)"},
		"suffix, same": {file(builtAs("bridge", "v1.9.1+k3s1", is)), "replaced", "kept v1.9.1+k3s1 (same version, different build)",
			"kept v1.9.1+k3s1 (same version, different build)", "kept policy missing, v1.9.1+k3s1 (go1.23)"},
		"newer": {file(builtAs("bridge", "v1.10.0", is)), "replaced", "kept v1.10.0 is newer than the bundle's v1.9.1",
			"kept v1.10.0 is newer than the bundle's v1.9.1", "kept policy missing, v1.10.0 (go1.23)"},
		"another project": {file(plugintest.Built(nodeArch, "go1.23", "", "path\texample.org/bridge", "mod\texample.org/bridge\tv1.0.0\th1:x")),
			"replaced", "replaced", "kept version not comparable: v1.0.0 of example.org/bridge (go1.23)", "kept policy missing, v1.0.0 of example.org/bridge (go1.23)"},
		"fork": {file(plugintest.Built(nodeArch, "go1.23", "", "path\tgithub.com/myorg/plugins/plugins/main/bridge", "mod\tgithub.com/myorg/plugins\tv1.9.5\th1:x")),
			"replaced", "replaced", "kept version not comparable: v1.9.5 of github.com/myorg/plugins (go1.23)", "kept policy missing, v1.9.5 of github.com/myorg/plugins (go1.23)"},
		"no semantic version": {file(builtAs("bridge", "v01.9.2", is)), "replaced", "replaced", "kept version not comparable: v01.9.2 (go1.23)",
			"kept policy missing, v01.9.2 (go1.23)"},
		"Debian": {file(debianBuild("bridge")), "replaced", "replaced", "kept unknown version (Debian-style build)",
			"kept policy missing, unknown version (Debian-style build)"},
		"script": {file(plugintest.Script("")), "replaced", "replaced", "kept unknown version, script", "kept policy missing, script"},
		"torn": {file(release.data[:100]), "replaced", "replaced", "kept unknown version, different (100 bytes, not SIZE)",
			"kept policy missing, different (100 bytes, not SIZE)"},
		"link": {kind(hostdir.Symlink), "replaced", "replaced", "kept unknown version, symlink to /nowhere/busybox (not visible from here)",
			"kept policy missing, symlink to /nowhere/busybox (not visible from here)"},
		"link to a newer one beside it": {func(t *testing.T, path string) {
			write(t, path+"-own", string(builtAs("bridge", "v1.10.0", is)), 0o755)
			must(t, os.Symlink(filepath.Base(path)+"-own", path))
		}, "replaced", "kept v1.10.0 is newer than the bundle's v1.9.1", "kept v1.10.0 is newer than the bundle's v1.9.1",
			"kept policy missing, symlink to bridge-own"},
		"link by way of another": {func(t *testing.T, path string) {
			own := filepath.Join(filepath.Dir(path), "own")
			must(t, os.Mkdir(own, 0o755))
			write(t, filepath.Join(own, "bridge"), string(builtAs("bridge", "v1.10.0", is)), 0o755)
			must(t, os.Symlink("own/bridge", path+"-own"))
			must(t, os.Symlink("./"+filepath.Base(path)+"-own", path))
		}, "replaced", "kept v1.10.0 is newer than the bundle's v1.9.1", "kept v1.10.0 is newer than the bundle's v1.9.1",
			"kept policy missing, symlink to ./bridge-own"},
		"link that leads out": {func(t *testing.T, path string) {
			out := filepath.Join(t.TempDir(), "bridge")
			write(t, out, string(builtAs("bridge", "v1.10.0", is)), 0o755)
			up, err := filepath.Rel(filepath.Dir(path), out)
			must(t, err)
			must(t, os.Symlink(up, path))
		}, "replaced", "replaced", "kept unknown version, symlink to OUT", "kept policy missing, symlink to OUT"},
		"directory": {kind(hostdir.Folder), "failed is a directory, left as it is", "failed is a directory, left as it is",
			"failed is a directory, left as it is", "kept policy missing, directory"},
		"fifo": {kind(hostdir.Fifo), "failed is a fifo, left as it is", "failed is a fifo, left as it is",
			"failed is a fifo, left as it is", "kept policy missing, special (fifo)"},
	} {
		for policy, want := range map[string]string{"replace": test.replace, "newer": test.newer, "newer keep": test.keep, "missing": test.missing, "never": ""} {
			t.Run(name+"/"+policy, func(t *testing.T) {
				bin := t.TempDir()
				path := filepath.Join(bin, "bridge")
				if test.there != nil {
					test.there(t, path)
				}
				same := unchanged(t, bin, false)
				what, unknown, _ := strings.Cut(policy, " ")
				o := Options{BinDir: bin, Policy: Policy(what), Unknown: Unknown(unknown)}
				dry := o
				dry.DryRun = true
				planned := stage(t, b, dry)
				same()
				r := stage(t, b, o)
				got := result(t, r, "bridge")
				if p := result(t, planned, "bridge"); p.Action != got.Action || p.Cause != got.Cause || p.Reason != got.Reason {
					t.Errorf("planned %s %q, did %s %q", p.Action, p.Cause, got.Action, got.Cause)
				}
				if policy == "never" {
					switch {
					case name == "equal" && got.Action == Unchanged:
					case name == "absent" && got.Cause == "policy never, nothing stands there":
					case got.Action != Kept || !strings.HasPrefix(got.Cause, "policy never, "):
						t.Errorf("%s %q", got.Action, got.Cause)
					}
					same()
					return
				}
				want = strings.ReplaceAll(want, "SIZE", sizeOf(release))
				want = strings.ReplaceAll(want, "OUT", got.Found.Target)
				if said := strings.TrimSpace(string(got.Action) + " " + got.Cause); said != want {
					t.Errorf("%s\nwant %s", said, want)
				}
				switch got.Action {
				case New, Replaced, Unchanged:
					inPlace(t, bin, release)
				default:
					same()
				}
				if r.Complete() != (got.Action != Failed) {
					t.Errorf("%s, complete: %t", got.Action, r.Complete())
				}
			})
		}
	}
}

func sizeOf(f file) string { return strconv.Itoa(len(f.data)) }

// A policy of its own for one name, and a name that the bundle does not have.
func TestPolicyFor(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{"bridge", "macvlan", "vlan"} {
		write(t, filepath.Join(bin, name), "theirs", 0o755)
	}
	b := packed(t, "v1.9.1", built("bridge", "v1.9.1"), built("macvlan", "v1.9.1"), built("ptp", "v1.9.1"), built("vlan", "v1.9.1"))
	r := stage(t, b, Options{BinDir: bin, Policy: Missing, PolicyFor: map[string]Policy{"macvlan": Replace, "ptp": Never, "brigde": Never}})
	want(t, r, "bridge:kept macvlan:replaced ptp:kept vlan:kept")
	wantWarnings(t, r, "a policy is given for brigde, which the bundle does not carry")
}

// Our own earlier file is nobody's patched build: it follows the bundle, but is never taken back to an older version unasked.
func TestPoliciesOfOurOwnFiles(t *testing.T) {
	older := packed(t, "v1.9.0", built("bridge", "v1.9.0"))
	release := packed(t, "v1.9.1", built("bridge", "v1.9.1"))
	rebuilt := packed(t, "v1.9.1", file{"bridge", bundle.Main, builtAs("bridge", "v1.9.1", " with another toolchain")})
	for _, test := range []struct {
		policy        Policy
		first, second *bundle.Bundle
		want          string
	}{
		{Newer, older, release, "bridge:replaced"}, {Newer, release, rebuilt, "bridge:replaced"}, {Newer, release, older, "bridge:kept"},
		{Missing, older, release, "bridge:replaced"}, {Missing, release, rebuilt, "bridge:replaced"}, {Missing, release, older, "bridge:replaced"},
		{Never, older, release, "bridge:kept"},
	} {
		for _, lose := range []bool{false, true} {
			bin := t.TempDir()
			stage(t, test.first, Options{BinDir: bin})
			if lose {
				must(t, os.Remove(filepath.Join(bin, storeName, ledgerName)))
			}
			r := stage(t, test.second, Options{BinDir: bin, Policy: test.policy})
			want(t, r, test.want)
			if kept := originals(t, bin, "bridge"); len(kept) > 0 {
				t.Errorf("%s: kept %q of our own", test.policy, kept)
			}
			if result(t, r, "bridge").Reason == IsNewer {
				want(t, stage(t, test.second, Options{BinDir: bin}), "bridge:replaced")
			}
			// So it does if somebody has changed its mode, and what somebody has written to is theirs.
			path := filepath.Join(bin, "bridge")
			must(t, os.Chmod(path, 0o555))
			last := packed(t, "v1.9.2", built("bridge", "v1.9.2"))
			want(t, stage(t, last, Options{BinDir: bin, Policy: Missing}), "bridge:replaced")
			must(t, os.Truncate(path, 100))
			want(t, stage(t, last, Options{BinDir: bin, Policy: Missing}), "bridge:kept")
		}
	}
}

// The layout can be changed under every policy but never: what is linked is ours, and the bundle's.
func TestPoliciesAndLayouts(t *testing.T) {
	b := packed(t, "v1.9.1", file{"bridge", bundle.Main, builtAs("one", "v1.9.1", "")}, file{"vlan", bundle.Main, builtAs("one", "v1.9.1", "")})
	for _, policy := range []Policy{Replace, Newer, Missing} {
		bin := t.TempDir()
		stage(t, b, Options{BinDir: bin, Layout: Linked})
		want(t, stage(t, b, Options{BinDir: bin, Policy: policy}), "bridge:unchanged vlan:replaced")
		want(t, stage(t, b, Options{BinDir: bin, Policy: policy}), "bridge:unchanged vlan:unchanged")
		want(t, stage(t, b, Options{BinDir: bin, Policy: policy, Layout: Linked}), "bridge:unchanged vlan:replaced")
	}
}

// What does not say its version is of that of the bundle that it was staged from, as long as the ledger knows; then --unknown decides.
func TestPoliciesOfOurOwnUnknown(t *testing.T) {
	for _, test := range []struct {
		first   string
		unknown Unknown
		lose    bool
		want    string
	}{
		{"v1.9.0", KeepUnknown, false, "bridge:replaced"}, {"v1.10.0", KeepUnknown, false, "bridge:kept"}, {"v1.10.0", ReplaceUnknown, false, "bridge:kept"},
		{"v1.9.1", KeepUnknown, false, "bridge:replaced"}, {"v1.10.0", KeepUnknown, true, "bridge:kept"}, {"v1.10.0", ReplaceUnknown, true, "bridge:replaced"},
	} {
		bin := t.TempDir()
		stage(t, packed(t, test.first, ref("bridge", test.first)), Options{BinDir: bin})
		if test.lose {
			must(t, os.Remove(filepath.Join(bin, storeName, ledgerName)))
		}
		r := stage(t, packed(t, "v1.9.1", ref("bridge", "second")), Options{BinDir: bin, Policy: Newer, Unknown: test.unknown})
		want(t, r, test.want)
	}
}

// A user's own plugin has a version of its own.
func TestPolicyOfAnExtra(t *testing.T) {
	of := func(version, note string) []byte {
		return plugintest.Built(nodeArch, "go1.26", note, "path\texample.org/mine", "mod\texample.org/mine\t"+version+"\th1:x")
	}
	b := packed(t, "v1.9.1", extra("mine", of("v0.3.0", "a")))
	for there, wanted := range map[string]string{"v0.2.9": "mine:replaced", "v0.3.0": "mine:kept", "v0.4.0": "mine:kept"} {
		bin := t.TempDir()
		write(t, filepath.Join(bin, "mine"), string(of(there, "b")), 0o755)
		want(t, stage(t, b, Options{BinDir: bin, Policy: Newer}), wanted)
	}
}

// What comes, or changes, between the plan and its turn was not what the policy was asked about.
func TestPolicyRaces(t *testing.T) {
	for _, policy := range []Policy{Newer, Missing} {
		for _, state := range []string{"absent", "older", "written to in place", "unseen"} {
			if policy == Missing && state != "absent" {
				continue // is kept anyway
			}
			t.Run(string(policy)+"/"+state, func(t *testing.T) {
				bin := t.TempDir()
				path := filepath.Join(bin, "bridge")
				if state != "absent" {
					write(t, path, string(builtAs("bridge", "v1.0.0", "")), 0o755)
				}
				var theirs string
				at := time.Unix(1, 0)
				if state == "unseen" {
					must(t, os.Chtimes(path, at, at))
				}
				comes := func() {
					switch {
					case theirs == "" && state == "unseen":
						write(t, path, string(builtAs("bridge", "v2.0.0", "")), 0o755)
						must(t, os.Chtimes(path, at, at))
						theirs = ident(t, path)
					case theirs == "":
						if state != "written to in place" {
							os.Remove(path)
						}
						write(t, path, "a patched build", 0o755)
						theirs = ident(t, path)
					}
				}
				realPublish, realExchange := publish, exchange
				swapVar(t, &publish, func(d, from *hostdir.Dir, name, to string) error {
					if to == "bridge" {
						comes()
					}
					return realPublish(d, from, name, to)
				})
				swapVar(t, &exchange, func(d, from *hostdir.Dir, name, to string) error {
					comes()
					return realExchange(d, from, name, to)
				})
				r := stage(t, packed(t, "v1.9.1", built("bridge", "v1.9.1")), Options{BinDir: bin, Policy: policy})
				if got := result(t, r, "bridge"); got.Action != Kept || got.Reason != Raced {
					t.Errorf("%s %s %q", got.Action, got.Reason, got.Cause)
				}
				if now := ident(t, path); now != theirs {
					t.Errorf("there is %s\nwant %s", now, theirs)
				}
				if kept := originals(t, bin, "bridge"); len(kept) > 0 {
					t.Errorf("kept %q", kept)
				}
			})
		}
	}
}

// What cannot be read is of no known version, and nobody's: under a policy that has to know, it stays, and has failed or says why.
func TestPolicyOfTheUnread(t *testing.T) {
	fail := &fs.PathError{Op: "open", Path: "/x", Err: syscall.EMFILE}
	theirs := func(t *testing.T, path string) { write(t, path, string(builtAs("bridge", "v1.10.0", "")), 0o700) }
	torn := func(t *testing.T, path string) { write(t, path, string(built("bridge", "v1.9.1").data[:100]), 0o700) }
	link := func(t *testing.T, path string) {
		theirs(t, path+"-own")
		must(t, os.Symlink(filepath.Base(path)+"-own", path))
	}
	ours := func(t *testing.T, path string) {
		stage(t, packed(t, "v1.9.0", file{"bridge", bundle.Main, append(builtAs("bridge", "v1.9.0", ""), "longer"...)}), Options{BinDir: filepath.Dir(path)})
	}
	for _, test := range []struct {
		there   string
		put     func(t *testing.T, path string)
		policy  Policy
		unknown Unknown
		unread  string // always, or but for the first time
		want    string
	}{
		{"theirs", theirs, Newer, ReplaceUnknown, "bridge", "failed open: too many open files; the old file was kept"},
		{"theirs", theirs, Newer, KeepUnknown, "bridge", "kept unknown version, unreadable (open: too many open files)"},
		{"theirs", theirs, Missing, "", "bridge", "kept policy missing, unreadable (open: too many open files)"},
		{"theirs", theirs, Replace, "", "bridge", "replaced"},
		{"torn", torn, Newer, ReplaceUnknown, "none", "replaced"},
		{"link", link, Newer, ReplaceUnknown, "bridge-own", "failed open: too many open files; the old link was kept"},
		{"link", link, Newer, KeepUnknown, "bridge-own", "kept unknown version, symlink to bridge-own, open: too many open files"},
		{"link to nothing", func(t *testing.T, path string) { must(t, os.Symlink("nothing", path)) }, Newer, ReplaceUnknown, "none", "replaced"},
		{"link to too long a name", func(t *testing.T, path string) { must(t, os.Symlink(strings.Repeat("x", 300), path)) }, Newer, ReplaceUnknown, "none", "replaced"},
		{"ours", ours, Missing, "", "bridge", "failed open: too many open files; the old file was kept"},
		{"ours", ours, Missing, "", "bridge later", "failed open: too many open files; the old file was kept"},
		{"ours", ours, Newer, KeepUnknown, "bridge", "failed open: too many open files; the old file was kept"},
		{"ours", ours, Newer, ReplaceUnknown, "bridge later", "failed open: too many open files; the old file was kept"},
	} {
		t.Run(strings.Join([]string{test.there, string(test.policy), string(test.unknown), test.unread}, "/"), func(t *testing.T) {
			bin := t.TempDir()
			path := filepath.Join(bin, "bridge")
			test.put(t, path)
			was := ident(t, path)
			name, later := strings.CutSuffix(test.unread, " later")
			n := 0
			for _, open := range []*func(*hostdir.Dir, string) (*os.File, hostdir.Entry, error){&openFile, &openBelow} {
				real := *open
				swapVar(t, open, func(d *hostdir.Dir, file string) (*os.File, hostdir.Entry, error) {
					if d.Path() == bin && file == name {
						if n++; !later || n > 1 {
							return nil, hostdir.Entry{}, fail
						}
					}
					return real(d, file)
				})
			}
			r := stage(t, packed(t, "v1.9.1", built("bridge", "v1.9.1")), Options{BinDir: bin, Policy: test.policy, Unknown: test.unknown})
			got := result(t, r, "bridge")
			if said := strings.TrimSpace(string(got.Action) + " " + got.Cause); said != test.want {
				t.Errorf("%s\nwant %s", said, test.want)
			}
			if now := ident(t, path); (now == was) != (got.Action != Replaced) {
				t.Errorf("%s, and there is %s\nwas %s", got.Action, now, was)
			}
		})
	}
}

// What cannot even be looked at may not be there: it has failed, and no policy that asks for it has kept it.
func TestPolicyOfTheUnseen(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	bin := t.TempDir()
	write(t, filepath.Join(bin, "bridge"), "theirs", 0o755)
	must(t, os.Chmod(bin, 0o600))
	t.Cleanup(func() { os.Chmod(bin, 0o700) })
	b := packed(t, "v1.9.1", built("bridge", "v1.9.1"), built("ptp", "v1.9.1"))
	for _, o := range []Options{{Policy: Missing}, {Policy: Newer}, {Policy: Newer, Unknown: KeepUnknown}} {
		o.BinDir = bin
		r := Run(t.Context(), b, o)
		checkReport(t, r)
		want(t, r, "bridge:failed ptp:failed")
		if cause := result(t, r, "ptp").Cause; !strings.HasPrefix(cause, "stat: permission denied") {
			t.Errorf("%s: %q", o.Policy, cause)
		}
	}
	want(t, Run(t.Context(), b, Options{BinDir: bin, Policy: Never}), "bridge:kept ptp:kept")
}

// Where the folder cannot be opened, nobody can say what is ours.
func TestPolicyWithoutTheFolder(t *testing.T) {
	bin := t.TempDir()
	stage(t, packed(t, "v1.9.0", built("bridge", "v1.9.0"), built("ptp", "v1.9.0")), Options{BinDir: bin})
	write(t, filepath.Join(bin, "ptp"), "theirs", 0o700)
	marks := filepath.Join(bin, storeName, stagedName)
	must(t, os.Rename(marks, marks+"-away"))
	must(t, os.Symlink("staged-away", marks))
	release := packed(t, "v1.9.1", built("bridge", "v1.9.1"), built("ptp", "v1.9.1"))
	r := stage(t, release, Options{BinDir: bin, Policy: Missing})
	want(t, r, "bridge:failed ptp:kept")
	if cause := result(t, r, "bridge").Cause; cause != ".chandler/staged is not a directory; the old file was kept" {
		t.Errorf("cause %q", cause)
	}
	must(t, os.Remove(marks))
	must(t, os.Rename(marks+"-away", marks))
	want(t, stage(t, release, Options{BinDir: bin, Policy: Missing}), "bridge:replaced ptp:kept")
}

// What a policy keeps is not ours to make durable: that the directory cannot be synced is told of what is ours.
func TestKeptIsNotUndurable(t *testing.T) {
	bin := t.TempDir()
	write(t, filepath.Join(bin, "bridge"), "theirs", 0o755)
	swapVar(t, &syncDir, func(d *hostdir.Dir) error { return &fs.PathError{Op: "sync", Path: d.Path(), Err: syscall.EIO} })
	r := stage(t, packed(t, "v1", set("v1", "bridge")...), Options{BinDir: bin, Policy: Missing})
	want(t, r, "bridge:kept")
	wantWarnings(t, r, "may not outlast a power cut: sync: input/output error")
}

// A name that a newer bundle no longer carries is left and told of, as long as it is ours.
func TestDropped(t *testing.T) {
	bin := t.TempDir()
	stage(t, packed(t, "v1", ref("bridge", "v1"), ref("tap", "v1"), ref("dummy", "v1")), Options{BinDir: bin})
	tap := ident(t, filepath.Join(bin, "tap"))
	write(t, filepath.Join(bin, "dummy"), "theirs", 0o755)
	r := stage(t, packed(t, "v2", ref("bridge", "v2")), Options{BinDir: bin})
	want(t, r, "bridge:replaced")
	wantWarnings(t, r, "tap: was staged from another bundle and is not in this one")
	if now := ident(t, filepath.Join(bin, "tap")); now != tap {
		t.Errorf("tap is %s", now)
	}
	back := restored(t, RestoreOptions{BinDir: bin, Only: []string{"tap"}})
	want(t, back, "tap:removed")
	wantWarnings(t, stage(t, packed(t, "v2", ref("bridge", "v2")), Options{BinDir: bin}))
}

// A name that another program takes back again and again is contended; one quiet run ends that.
func TestContendedNames(t *testing.T) {
	b := packed(t, "v1", ref("bridge", "v1"), ref("ptp", "v1"))
	bin := t.TempDir()
	round := func(theirs string) *Report {
		if theirs != "" {
			path := filepath.Join(bin, "bridge")
			os.Remove(path)
			write(t, path, theirs, 0o755)
		}
		return stage(t, b, Options{BinDir: bin})
	}
	// What stood there when staging first came is in nobody's way.
	wantWarnings(t, round("the first"))
	for range 2 {
		for i := 1; i <= 4; i++ {
			r := round("theirs")
			got := result(t, r, "bridge").Contended
			if i < contendedRuns {
				wantWarnings(t, r)
			} else if wantWarnings(t, r, "bridge: contended: another program's file had to be replaced in "); got == nil || got.Runs != i || got.SHA256 != sum([]byte("theirs")) {
				t.Errorf("run %d: %+v", i, got)
			}
		}
		wantWarnings(t, round(""))
		same := unchanged(t, bin, true)
		wantWarnings(t, round(""))
		same()
	}
	// One that could not be read has no digest to tell.
	r := &run{report: &Report{}, work: []*piece{{contended: &Contention{4, unreadDigest}}}}
	r.sayContended()
	wantWarnings(t, r.report, "in 4 runs in a row, the last could not be read")
	// One quiet run in between, and it begins anew; so does one in which the policy keeps it.
	for _, o := range []Options{{BinDir: bin}, {BinDir: bin, Policy: Missing}} {
		round("theirs")
		round("theirs")
		if o.Policy == Missing {
			os.Remove(filepath.Join(bin, "bridge"))
			write(t, filepath.Join(bin, "bridge"), "theirs", 0o755)
		}
		stage(t, b, o)
		wantWarnings(t, round("theirs"))
		round("")
	}
	// Our own earlier files are nobody's.
	for _, version := range []string{"v2", "v3", "v4", "v5"} {
		wantWarnings(t, stage(t, packed(t, version, ref("bridge", version), ref("ptp", version)), Options{BinDir: bin}))
	}
}

// A program that puts the same file back each time pushes out its own, and not what stood there first.
func TestSameOriginals(t *testing.T) {
	bin := t.TempDir()
	path := filepath.Join(bin, "bridge")
	b := packed(t, "v1", ref("bridge", "v1"))
	write(t, path, "first", 0o711)
	first := ident(t, path)
	stage(t, b, Options{BinDir: bin})
	for range 5 {
		os.Remove(path)
		write(t, path, "again", 0o755)
		stage(t, b, Options{BinDir: bin})
	}
	kept := originals(t, bin, "bridge")
	if len(kept) != keepOriginals || ident(t, filepath.Join(bin, storeName, originalsName, "bridge", kept[0])) != first {
		t.Errorf("kept %q", kept)
	}
}
