package plugin

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
)

func describeFile(t *testing.T, path string) Description {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	d, err := Describe(f, st.Size())
	if err != nil {
		t.Fatal(err)
	}
	info, err := BuildInfo(f, st.Size())
	if err != nil {
		t.Fatal(err)
	}
	real, err := buildinfo.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(real, info); diff != "" {
		t.Errorf("debug/buildinfo (-), BuildInfo (+):\n%s", diff)
	}
	return d
}

// upstreamTree is laid out as the reference plugins' module is.
var upstreamTree = map[string]string{
	"go.mod":                            "module " + ReferenceModule + "\n\ngo 1.24\n",
	"pkg/utils/buildversion/version.go": "package buildversion\n\nvar BuildVersion = \"unknown\"\n",
	"plugins/main/bridge/main.go": "package main\n\nimport \"" + ReferenceModule + "/pkg/utils/buildversion\"\n\n" +
		"func main() { println(buildversion.BuildVersion) }\n",
	"main.go": "package main\n\nfunc main() {}\n",
}

func buildTree(t *testing.T, files map[string]string, pkg string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", append(append([]string{"build", "-buildvcs=false", "-o", out}, flags...), pkg)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return out
}

// What upstream's release script makes, and what distributions make of it.
func TestDescribeBuilds(t *testing.T) {
	const setVersion = "-X " + buildVersion + "=v1.9.1"
	const bridge = ReferenceModule + "/plugins/main/bridge"
	for _, test := range []struct {
		name  string
		pkg   string
		flags []string
		want  Description
	}{
		{"as released", "./plugins/main/bridge", []string{"-ldflags", "-extldflags -static " + setVersion},
			Description{Name: "bridge", Version: "v1.9.1", VersionFrom: FromLDFlags, Module: ReferenceModule, Package: bridge}},
		{"stripped", "./plugins/main/bridge", []string{"-ldflags", "-s -w " + setVersion},
			Description{Name: "bridge", Version: "v1.9.1", VersionFrom: FromLDFlags, Module: ReferenceModule, Package: bridge}},
		{"trimmed", "./plugins/main/bridge", []string{"-trimpath", "-ldflags", setVersion},
			Description{Name: "bridge", Version: "v1.9.1", VersionFrom: FromSymbol, Module: ReferenceModule, Package: bridge}},
		{"trimmed and stripped", "./plugins/main/bridge", []string{"-trimpath", "-ldflags", "-s -w " + setVersion},
			Description{Name: "bridge", VersionFrom: FromNowhere, Package: bridge}},
		{"no version", "./plugins/main/bridge", nil,
			Description{Name: "bridge", VersionFrom: FromNowhere, Package: bridge}},
		{"files", "plugins/main/bridge/main.go", []string{"-ldflags", setVersion},
			Description{Version: "v1.9.1", VersionFrom: FromLDFlags, Module: ReferenceModule, Package: "command-line-arguments"}},
		{"a main package of a distribution's", ".", []string{"-ldflags", setVersion + "+k3s1"},
			Description{Multicall: true, Version: "v1.9.1+k3s1", VersionFrom: FromLDFlags, Module: ReferenceModule, Package: ReferenceModule}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := describeFile(t, buildTree(t, upstreamTree, test.pkg, test.flags...))
			test.want.Info = Info{Kind: ELF, Arch: runtime.GOARCH}
			test.want.Go = runtime.Version()
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The program that runs this test was made by a real linker too.
func TestDescribeReal(t *testing.T) {
	if d := describeFile(t, "/proc/self/exe"); d.Go != runtime.Version() || !strings.HasPrefix(d.Package, "github.com/chandler-cni/chandler/") {
		t.Errorf("%+v", d)
	}
}

// goELF is the smallest file with build information: a segment that loads the headers, and one of data that can be written.
func goELF(data []byte) []byte {
	const headers = 64 + 2*56
	b := plugintest.ELF("amd64", "")
	le := binary.LittleEndian
	text := b[120 : 120+56]
	copy(b[64:], text)
	le.PutUint64(b[64+32:], headers)
	le.PutUint64(b[64+40:], headers)
	le.PutUint32(text[4:], uint32(elf.PF_R|elf.PF_W))
	le.PutUint64(text[8:], headers)
	le.PutUint64(text[16:], dataAddr)
	le.PutUint64(text[32:], uint64(len(data)))
	le.PutUint64(text[40:], uint64(len(data)))
	return append(b[:headers], data...)
}

const dataAddr = 0x600000

// inlineInfo is build information as Go writes it since 1.18.
func inlineInfo(version, modules string) []byte {
	b := append([]byte(buildInfoMagic), 0, 2)
	b = append(b, make([]byte, buildInfoHeader-len(b))...)
	for _, s := range []string{version, modules} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return b
}

// pointedInfo is build information as Go wrote it before.
func pointedInfo(version, modules string) []byte {
	le := binary.LittleEndian
	b := append([]byte(buildInfoMagic), 8, 0)
	b = le.AppendUint64(b, dataAddr+32)
	b = le.AppendUint64(b, dataAddr+48)
	at := uint64(dataAddr + 64)
	for _, s := range []string{version, modules} {
		b = le.AppendUint64(b, at)
		b = le.AppendUint64(b, uint64(len(s)))
		at += uint64(len(s))
	}
	return append(append(b, version...), modules...)
}

func modules(lines ...string) string {
	mark := strings.Repeat("=", 16)
	return mark + strings.Join(lines, "\n") + "\n" + mark
}

func describeBytes(b []byte) (Description, error) { return Describe(bytes.NewReader(b), int64(len(b))) }

func TestDescribeBuildInfo(t *testing.T) {
	released := modules("path\t"+ReferenceModule+"/plugins/meta/portmap", "mod\t"+ReferenceModule+"\tv1.9.1\th1:x")
	const whereabouts = "github.com/k8snetworkplumbingwg/whereabouts"
	portmap := Description{Name: "portmap", Version: "v1.9.1", VersionFrom: FromMainModule, Module: ReferenceModule,
		Package: ReferenceModule + "/plugins/meta/portmap", Go: "go1.26.8"}
	older := portmap
	older.Go = "go1.15"
	for _, test := range []struct {
		name string
		data []byte
		want Description
	}{
		{"module", inlineInfo("go1.26.8", released), portmap},
		{"before Go 1.18", pointedInfo("go1.15", released), older},
		{"further down", append(make([]byte, 70<<10), inlineInfo("go1.26.8", released)...), portmap},
		{"across two pieces", append(make([]byte, searchChunk-16), inlineInfo("go1.26.8", released)...), portmap},
		{"out of line", append(make([]byte, 8), inlineInfo("go1.26.8", released)...), Description{VersionFrom: FromNowhere}},
		{"too far down", append(make([]byte, maxSearch), inlineInfo("go1.26.8", released)...), Description{VersionFrom: FromNowhere}},
		{"multi-call", inlineInfo("go1.26.8", modules("path\tx.org/upstream/plugins", "mod\tx.org/upstream/plugins\t(devel)\t",
			"dep\t"+ReferenceModule+"\tv1.9.1\th1:x")),
			Description{Multicall: true, Version: "v1.9.1", VersionFrom: FromDependency, Module: ReferenceModule, Package: "x.org/upstream/plugins", Go: "go1.26.8"}},
		{"multi-call of a fork", inlineInfo("go1.26.8", modules("path\tx.org/upstream/plugins", "mod\tx.org/upstream/plugins\t(devel)\t",
			"dep\t"+ReferenceModule+"\tv1.9.1", "=>\tx.org/plugins\tv1.9.1-k3s1\th1:x")),
			Description{Multicall: true, Version: "v1.9.1-k3s1", VersionFrom: FromDependency, Module: ReferenceModule, Package: "x.org/upstream/plugins", Go: "go1.26.8"}},
		// A plugin that uses upstream's packages is not of upstream's version.
		{"user of the module", inlineInfo("go1.26.8", modules("path\t"+whereabouts+"/cmd", "mod\t"+whereabouts+"\t(devel)\t",
			"dep\t"+ReferenceModule+"\tv1.9.1\th1:x", "build\t-ldflags=\"-X '"+whereabouts+"/pkg/version.GoVersion=go1.26' -X="+whereabouts+"/pkg/version.Version=v0.9.2\"")),
			Description{Name: "cmd", Version: "v0.9.2", VersionFrom: FromLDFlags, Module: whereabouts, Package: whereabouts + "/cmd", Go: "go1.26.8"}},
		{"commit", inlineInfo("go1.26.8", modules("path\tx.org/sriov/v2", "mod\tx.org/sriov/v2\tv2.0.1-0.20260101000000-0123456789ab+dirty\th1:x")),
			Description{Name: "sriov", Version: "v2.0.1-0.20260101000000-0123456789ab+dirty", VersionFrom: FromMainModule, Module: "x.org/sriov/v2", Package: "x.org/sriov/v2", Go: "go1.26.8"}},
		{"as Debian builds", inlineInfo("go1.19.8", modules("path\t"+ReferenceModule+"/plugins/meta/portmap", "build\t-trimpath=true")),
			Description{Name: "portmap", VersionFrom: FromNowhere, Package: portmap.Package, Go: "go1.19.8"}},
		{"no modules", inlineInfo("go1.26.8", ""), Description{VersionFrom: FromNowhere, Go: "go1.26.8"}},
		{"nothing of Go's", []byte("plain data"), Description{VersionFrom: FromNowhere}},
		{"control characters", inlineInfo("go1\x1b[2J", modules("path\tx.org/\x1b[2Jbridge", "mod\tx.org/\x1b\tv1.0.0\th1:x")), Description{VersionFrom: FromNowhere}},
		{"version that is none", inlineInfo("go1.26.8", modules("path\tx.org/bridge", "mod\tx.org/bridge\tone two\th1:x")),
			Description{Name: "bridge", VersionFrom: FromNowhere, Package: "x.org/bridge", Go: "go1.26.8"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := describeBytes(goELF(test.data))
			if err != nil {
				t.Fatal(err)
			}
			test.want.Info = Info{Kind: ELF, Arch: "amd64"}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDescribeScript(t *testing.T) {
	got, err := describeBytes(plugintest.Script(""))
	if want := (Description{Info: Info{Kind: Script, Interpreter: "/bin/sh"}, VersionFrom: FromNowhere}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := BuildInfo(bytes.NewReader(plugintest.Script("")), 10); !errors.Is(err, ErrNoBuildInfo) {
		t.Error(err)
	}
}

// A file that claims too much of itself says nothing, quickly and in little memory.
func TestDescribeHostile(t *testing.T) {
	le := binary.LittleEndian
	good := inlineInfo("go1.26.8", modules("path\tx.org/bridge"))
	huge := bytes.Clone(good)[:buildInfoHeader]
	huge = binary.AppendUvarint(huge, 1<<31)
	endless := append(bytes.Clone(good)[:buildInfoHeader], bytes.Repeat([]byte{0xff}, 100)...)
	astray := pointedInfo("go1.15", "")
	le.PutUint64(astray[16:], 1<<63)
	around := pointedInfo("go1.15", "")
	le.PutUint64(around[32+8:], 1<<64-8)
	withSections := func(change func(header []byte)) []byte {
		b := goELF(good)
		le.PutUint64(b[40:], uint64(len(b)))
		le.PutUint16(b[58:], 64)
		le.PutUint16(b[60:], 3)
		le.PutUint16(b[62:], 1)
		names := []byte("\x00.go.buildinfo\x00.symtab\x00")
		headers := make([]byte, 3*64)
		for i, kind := range []elf.SectionType{elf.SHT_PROGBITS, elf.SHT_STRTAB, elf.SHT_SYMTAB} {
			h := headers[i*64:]
			le.PutUint32(h, 1)
			le.PutUint32(h[4:], uint32(kind))
			le.PutUint64(h[16:], 1<<40)
			le.PutUint64(h[24:], uint64(len(b)+len(headers)))
			le.PutUint64(h[32:], uint64(len(names)))
			le.PutUint32(h[40:], 1)
		}
		change(headers)
		return append(append(b, headers...), names...)
	}
	for _, test := range []struct {
		name string
		file []byte
		go_  string
	}{
		{"string of 2 GiB", goELF(huge), ""},
		{"length without an end", goELF(endless), ""},
		{"pointer to nowhere", goELF(astray), ""},
		{"string around the world", goELF(around), ""},
		{"cut off", goELF(good[:len(good)-30]), ""},
		{"header cut off", goELF(good[:20]), ""},
		{"section that lies elsewhere", withSections(func([]byte) {}), "go1.26.8"},
		{"symbols of the end of the world", withSections(func(h []byte) { le.PutUint64(h[128+32:], 1<<63) }), "go1.26.8"},
		{"symbols past the file", withSections(func(h []byte) { le.PutUint64(h[128+24:], 1<<40) }), "go1.26.8"},
		{"names past the file", withSections(func(h []byte) { le.PutUint64(h[64+24:], 1<<63) }), "go1.26.8"},
		{"names of the end of the world", withSections(func(h []byte) { le.PutUint64(h[64+32:], 1<<63) }), "go1.26.8"},
		{"names that are no section", withSections(func(h []byte) { le.PutUint32(h[128+40:], 1<<31) }), "go1.26.8"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &readCounter{ReaderAt: bytes.NewReader(test.file)}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			d, err := Describe(r, int64(len(test.file)))
			runtime.ReadMemStats(&after)
			if err != nil || d.Go != test.go_ || d.Version != "" {
				t.Errorf("%+v, %v", d, err)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 4<<20 || r.n > 4<<20 {
				t.Errorf("allocated %d and read %d bytes", took, r.n)
			}
		})
	}
}

func TestDescribeReadError(t *testing.T) {
	b := goELF(inlineInfo("go1.26.8", modules("path\tx.org/bridge")))
	for _, from := range []int64{0, 256} {
		if d, err := Describe(failingReader{bytes.NewReader(b), from}, int64(len(b))); !errors.Is(err, errDisk) || d != (Description{VersionFrom: FromNowhere}) {
			t.Errorf("read fails after %d bytes: %+v, %v", from, d, err)
		}
	}
}

func FuzzDescribe(f *testing.F) {
	released := modules("path\t"+ReferenceModule+"/plugins/meta/portmap", "mod\t"+ReferenceModule+"\t(devel)\t",
		"build\t-ldflags=\"-X '"+buildVersion+"=v1.9.1'\"")
	f.Add(goELF(inlineInfo("go1.26.8", released)))
	f.Add(goELF(pointedInfo("go1.15", released)))
	f.Add(goELF(inlineInfo("go1.26.8", modules("path\tx.org/upstream/plugins", "mod\tx.org/upstream/plugins\t(devel)\t", "dep\t"+ReferenceModule+"\tv1.9.1", "=>\tx.org/p\tv1"))))
	f.Add(plugintest.Script(""))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &readCounter{ReaderAt: bytes.NewReader(b)}
		d, err := Describe(r, int64(len(b)))
		// The headers twice, the table of sections, and what is bounded by the file's size.
		if limit := 2*(maxScriptLine+maxHeaders*(layout64.program+maxInterp)) + 8*len(b) + maxSections*len(buildInfoMagic); r.n > limit {
			t.Errorf("read %d bytes of %d", r.n, len(b))
		}
		if err != nil {
			if d != (Description{VersionFrom: FromNowhere}) {
				t.Errorf("an error and %+v", d)
			}
			return
		}
		if (d.Version == "") != (d.VersionFrom == FromNowhere) || (d.Version == "") != (d.Module == "") {
			t.Errorf("%+v", d)
		}
		for _, s := range []string{d.Name, d.Version, d.Module, d.Package, d.Go} {
			if s != "" && !plainText(s) {
				t.Errorf("%q", s)
			}
		}
		if d.Name != "" && CheckName(d.Name) != nil {
			t.Errorf("%q", d.Name)
		}
	})
}

// The text of a module list is parsed by the standard library, which has to bear anything.
func FuzzBuildInfo(f *testing.F) {
	f.Add("path\tx.org/p\nmod\tx.org/p\tv1.0.0\th1:x\ndep\tx.org/q\tv1.0.0\n=>\tx.org/r\tv1.0.0\th1:y\nbuild\t\"a b\"=\"c\\n\"")
	f.Fuzz(func(t *testing.T, text string) {
		b := goELF(inlineInfo("go1.26.8", modules(text)))
		info, err := BuildInfo(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			if !errors.Is(err, ErrNoBuildInfo) {
				t.Error(err)
			}
			return
		}
		var d Description
		d.fromBuildInfo(info)
	})
}
