package source_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
	"github.com/chandler-cni/chandler/internal/source"
)

// packed is a tar of the given members. A header without a type is a file's, of its content's size.
type packed struct {
	tar.Header
	content string
}

func file(name, content string) packed {
	return packed{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755}, content}
}

func tarOf(t testing.TB, members ...packed) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		if m.Typeflag == tar.TypeReg {
			m.Size = int64(len(m.content))
		}
		if err := w.WriteHeader(&m.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func compress(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// upstreamAddress is what the bundles of these tests record.
const upstreamAddress = "https://example.com/releases/download/v0.1.0/cni-plugins-linux-amd64-v0.1.0.tgz"

// release wants two small plugins of a tarball, whose pin is honest whatever is in it.
func release(tarball []byte) source.Release {
	sum := sha256.Sum256(tarball)
	return source.Release{
		Module: "example.com/plugins", Version: "v0.1.0", Arch: "amd64", URL: upstreamAddress, SHA256: hex.EncodeToString(sum[:]),
		Plugins: []source.Plugin{{Name: "one", Role: bundle.Main}, {Name: "two", Role: bundle.Meta}},
	}
}

func honest() []packed {
	elf := string(plugintest.ELF("amd64", ""))
	return []packed{
		{tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}, ""},
		file("./LICENSE", "do as you like\n"),
		file("./README.md", "read me\n"),
		file("./one", elf),
		file("./three", elf+"3"),
		file("./two", elf+"2"),
	}
}

func serveFile(t *testing.T, data []byte) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}))
	t.Cleanup(s.Close)
	return s.URL + "/plugins.tgz"
}

func saveFile(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plugins.tgz")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// The real plugins out of a tarball that is made as upstream's are: the same bytes as in the bundle they were built into.
func TestReleaseReal(t *testing.T) {
	b, path := openBuilt(t, source.Separate)
	members := []packed{{tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}, ""}, file("./LICENSE", "Apache License\n"), file("./README.md", "")}
	r := source.Release{Module: "github.com/containernetworking/plugins", Version: b.Manifest.Version, Arch: b.Manifest.Arch, URL: upstreamAddress}
	for _, p := range b.Manifest.Plugins {
		content, err := os.ReadFile(filepath.Join(path, "bin", p.Name))
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, file("./"+p.Name, string(content)))
		r.Plugins = append(r.Plugins, source.Plugin{Name: p.Name, Role: p.Role})
	}
	tarball := compress(t, tarOf(t, members...))
	r.SHA256 = release(tarball).SHA256
	r.Mirror = serveFile(t, tarball)
	out := filepath.Join(t.TempDir(), "bundle")
	if err := r.Bundle(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	got := verified(t, out)
	if diff := cmp.Diff(b.Manifest.Plugins, got.Manifest.Plugins); diff != "" {
		t.Error(diff)
	}
	if want := (bundle.Source{Kind: "release", URL: upstreamAddress, SHA256: r.SHA256}); got.Manifest.Source != want {
		t.Errorf("%+v", got.Manifest.Source)
	}
	if text, err := os.ReadFile(filepath.Join(out, "licenses", r.Module+"@"+r.Version, "LICENSE")); err != nil || string(text) != "Apache License\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// A copy, a mirror and upstream itself make one and the same bundle.
func TestReleaseWays(t *testing.T) {
	tarball := compress(t, tarOf(t, honest()...))
	digests := make(map[string]bool)
	for name, way := range map[string]func(r *source.Release){
		"file":   func(r *source.Release) { r.File = saveFile(t, tarball) },
		"mirror": func(r *source.Release) { r.Mirror = serveFile(t, tarball) },
		"link": func(r *source.Release) {
			r.File = filepath.Join(t.TempDir(), "link")
			if err := os.Symlink(saveFile(t, tarball), r.File); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := release(tarball)
			way(&r)
			var last int64
			r.Progress = func(done, _ int64) { last = done }
			tmp, out := t.TempDir(), filepath.Join(t.TempDir(), "deep/bundle")
			t.Setenv("TMPDIR", tmp)
			if err := r.Bundle(t.Context(), out); err != nil {
				t.Fatal(err)
			}
			b := verified(t, out)
			if names := pluginNames(b); !slices.Equal(names, []string{"one", "two"}) {
				t.Errorf("%q", names)
			}
			if (last == int64(len(tarball))) != (r.File == "") {
				t.Errorf("progress ends at %d of %d", last, len(tarball))
			}
			digests[b.Digest] = true
			mustBeAbsent(t, filepath.Join(tmp, "x"))
		})
	}
	if len(digests) != 1 {
		t.Errorf("digests %v", slices.Collect(maps.Keys(digests)))
	}
}

func pluginNames(b *bundle.Bundle) []string {
	var names []string
	for _, p := range b.Manifest.Plugins {
		names = append(names, p.Name)
	}
	return names
}

// Whatever is wrong, it has an error of its own, and nothing appears.
func TestReleaseRefuses(t *testing.T) {
	elf := string(plugintest.ELF("amd64", ""))
	with := func(more ...packed) []byte { return compress(t, tarOf(t, append(honest(), more...)...)) }
	without := func(name string) []byte {
		return compress(t, tarOf(t, slices.DeleteFunc(honest(), func(m packed) bool { return m.Name == name })...))
	}
	instead := func(name string, m packed) []byte {
		members := honest()
		members[slices.IndexFunc(members, func(m packed) bool { return m.Name == name })] = m
		return compress(t, tarOf(t, members...))
	}
	link := func(name string, kind byte, target string) packed {
		return packed{tar.Header{Name: name, Typeflag: kind, Linkname: target, Mode: 0o777}, ""}
	}
	plain := tarOf(t, honest()...)
	good := compress(t, plain)
	unmarked := plain[:len(bytes.TrimRight(plain, "\x00"))]
	unmarked = unmarked[: (len(unmarked)+511)/512*512 : (len(unmarked)+511)/512*512]
	headerless := bytes.Clone(plain)
	headerless[512+148] ^= 1 // in the checksum of the second header
	flipped := bytes.Clone(good)
	flipped[len(flipped)-6] ^= 1 // in the checksum of the compression
	huge := tar.Header{Name: "one", Typeflag: tar.TypeReg, Mode: 0o755, Size: 1 << 40}
	var hugeTar bytes.Buffer
	if err := tar.NewWriter(&hugeTar).WriteHeader(&huge); err != nil {
		t.Fatal(err)
	}
	var many []packed
	for range 1025 {
		many = append(many, packed{tar.Header{Name: "folder/", Typeflag: tar.TypeDir}, ""})
	}
	for _, test := range []struct {
		name    string
		tarball []byte
		err     error
		says    string
	}{
		{"plugin absent", without("./one"), source.ErrMissing, `"one" in the tarball is not there`},
		{"licence absent", without("./LICENSE"), source.ErrMissing, `"LICENSE" in the tarball is not there`},
		{"plugin twice", with(file("one", elf)), source.ErrDuplicate, `"one" in the tarball is there twice`},
		{"unwanted twice", with(file("three", elf)), source.ErrDuplicate, `"three" in`},
		{"symbolic link", instead("./one", link("./one", tar.TypeSymlink, "two")), source.ErrLink, `"./one" in the tarball is a symbolic link`},
		{"symbolic link of no concern", with(link("x", tar.TypeSymlink, "/etc/passwd")), source.ErrLink, `"x" in`},
		{"hard link", instead("./one", link("./one", tar.TypeLink, "./two")), source.ErrHardLink, `"./one" in the tarball is a hard link`},
		{"hard link out", with(link("x", tar.TypeLink, "../../etc/passwd")), source.ErrHardLink, `"x" in`},
		{"device", instead("./one", packed{tar.Header{Name: "./one", Typeflag: tar.TypeBlock, Devmajor: 8}, ""}), source.ErrSpecial, `"./one" in the tarball is neither`},
		{"fifo", with(packed{tar.Header{Name: "x", Typeflag: tar.TypeFifo}, ""}), source.ErrSpecial, `"x" in`},
		{"folder", instead("./one", packed{tar.Header{Name: "./one/", Typeflag: tar.TypeDir}, ""}), source.ErrNotFile, `"./one/" in the tarball is a folder`},
		{"absolute", with(file("/etc/x", "")), source.ErrAbsolute, `"/etc/x" in the tarball has an absolute path`},
		{"absolute plugin", instead("./one", file("/one", elf)), source.ErrAbsolute, `"/one" in`},
		{"climbs", with(file("x/../../one", "")), source.ErrClimbs, `"x/../../one" in the tarball has a path with ..`},
		{"climbs back", instead("./one", file("x/../one", elf)), source.ErrClimbs, `"x/../one" in`},
		{"in a folder", instead("./one", file("bin/one", elf)), source.ErrMissing, `"one" in`},
		{"large licence", instead("./LICENSE", file("./LICENSE", strings.Repeat("x", 1<<20+1))), source.ErrMemberSize, `"LICENSE" in the tarball is too large`},
		{"large plugin", compress(t, hugeTar.Bytes()), source.ErrMemberSize, `"one" in the tarball is too large`},
		{"too many", compress(t, tarOf(t, many...)), source.ErrUnpacked, "the tarball holds too much"},
		{"garbage behind", append(bytes.Clone(good), "more"...), source.ErrGarbage, "the tarball goes on after its end"},
		{"a second one behind", append(bytes.Clone(good), good...), source.ErrGarbage, "the tarball goes on"},
		{"garbage behind the tar", compress(t, append(bytes.Clone(plain), "more"...)), source.ErrGarbage, "the tarball goes on"},
		{"truncated", good[:len(good)/2], source.ErrTruncated, "the tarball is truncated"},
		{"one byte short", good[:len(good)-1], source.ErrTruncated, "the tarball is truncated"},
		{"header only", good[:5], source.ErrTruncated, "the tarball is truncated"},
		{"empty", nil, source.ErrTruncated, "the tarball is truncated"},
		{"truncated before it was compressed", compress(t, plain[:len(plain)/2]), source.ErrTruncated, "is truncated"},
		{"no mark of the end", compress(t, unmarked), source.ErrTruncated, "the tarball is truncated"},
		{"compressed twice", compress(t, good), source.ErrTwice, "the tarball is compressed twice"},
		{"not compressed", plain, source.ErrNotGzip, "the tarball is not compressed with gzip"},
		{"broken header", compress(t, headerless), source.ErrCorrupt, "the tarball is corrupt"},
		{"broken checksum", flipped, source.ErrCorrupt, "the tarball is corrupt"},
		{"no plugin", instead("./two", file("./two", "text")), nil, "add plugin two: neither an ELF executable nor a script"},
		{"another machine's", instead("./two", file("./two", string(plugintest.ELF("arm64", "")))), nil, "add plugin two: built for arm64, not for amd64"},
		{"not static", instead("./two", file("./two", string(plugintest.ELF("amd64", "/lib/ld.so")))), nil, "add plugin two: not static"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := release(test.tarball)
			r.File = saveFile(t, test.tarball)
			refuses(t, r, test.err, test.says)
		})
	}
}

func refuses(t *testing.T, r source.Release, is error, says string) {
	t.Helper()
	tmp, out := t.TempDir(), filepath.Join(t.TempDir(), "deep/bundle")
	t.Setenv("TMPDIR", tmp)
	err := r.Bundle(t.Context(), out)
	if err == nil || is != nil && !errors.Is(err, is) || !strings.Contains(err.Error(), says) {
		t.Errorf("%v; want %q", err, says)
	}
	mustBeAbsent(t, filepath.Dir(out))
	mustBeAbsent(t, filepath.Join(tmp, "x"))
}

// One byte that differs, in a mirror's file or a copy, is found before anything is unpacked.
func TestReleaseOtherDigest(t *testing.T) {
	good := compress(t, tarOf(t, honest()...))
	bad := bytes.Clone(good)
	bad[len(bad)/2] ^= 1
	r := release(good)
	r.File = saveFile(t, bad)
	refuses(t, r, nil, r.File+": its SHA-256 is "+release(bad).SHA256+", pinned is "+r.SHA256)

	r = release(good)
	r.Mirror = strings.Replace(serveFile(t, bad), "http://", "http://user:secret@", 1)
	refuses(t, r, nil, "http://user:xxxxx@127.0.0.1")
}

func TestReleaseNotToBeHad(t *testing.T) {
	r := release(nil)
	r.File = filepath.Join(t.TempDir(), "none")
	refuses(t, r, os.ErrNotExist, "read release: stat "+r.File)
	r.File = t.TempDir()
	refuses(t, r, nil, "read release: open "+r.File+": not a regular file")
	r.File = filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(r.File, 0o644); err != nil {
		t.Fatal(err)
	}
	refuses(t, r, nil, "not a regular file")
	r.File, r.Mirror = "", "ftp://example.com/x"
	refuses(t, r, nil, "is not an http or https address")
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	r.Mirror = s.URL + "/x.tgz"
	refuses(t, r, nil, "get "+r.Mirror+": 404 Not Found")
}

// Nothing is downloaded for a place that is taken, and what is on its way ends with its context.
func TestReleaseOccupiedAndCancelled(t *testing.T) {
	because := errors.New("because")
	ctx, cancel := context.WithCancelCause(t.Context())
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		cancel(because)
		<-r.Context().Done()
	}))
	defer s.Close()
	r := release(nil)
	r.Mirror = s.URL
	taken := t.TempDir()
	if err := os.WriteFile(filepath.Join(taken, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.Bundle(t.Context(), taken); !errors.Is(err, bundle.ErrOccupied) || asked.Load() > 0 {
		t.Errorf("%v, asked %d times", err, asked.Load())
	}
	tmp, out := t.TempDir(), filepath.Join(t.TempDir(), "deep/bundle")
	t.Setenv("TMPDIR", tmp)
	if err := r.Bundle(ctx, out); !errors.Is(err, because) {
		t.Error(err)
	}
	mustBeAbsent(t, filepath.Dir(out))
	mustBeAbsent(t, filepath.Join(tmp, "x"))
}

// A small file that unpacks to a large one is given up in bounded memory.
func TestReleaseBomb(t *testing.T) {
	members := append(honest(), packed{tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Mode: 0o644}, strings.Repeat("\x00", 64<<20)})
	tarball := compress(t, tarOf(t, members...))
	r := release(tarball)
	r.File = saveFile(t, tarball)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := r.Bundle(t.Context(), filepath.Join(t.TempDir(), "bundle")); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 8<<20 {
		t.Errorf("allocated %d bytes to pass over a member", took)
	}
}
