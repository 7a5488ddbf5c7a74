package plugin

import (
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime/debug"
	"strings"
)

// ReferenceModule is the Go module of the CNI reference plugins.
const ReferenceModule = "github.com/containernetworking/plugins"

// VersionFrom is how a plugin's version is known.
type VersionFrom string

const (
	FromMainModule VersionFrom = "main module" // build information: of the module that holds the main package
	FromDependency VersionFrom = "dependency"  // build information: of the module that a multi-call program is made of
	FromLDFlags    VersionFrom = "-ldflags"    // build information: set by -X when it was linked
	FromSymbol     VersionFrom = "ELF symbol"  // the same, read from the variable itself
	FromNowhere    VersionFrom = "unknown"
)

// Description is what a plugin's file says of itself, and no more than that: anybody may have written anything into it.
type Description struct {
	Info
	Name        string // what it was built as; empty if it does not say, and for a multi-call program, which is many
	Multicall   bool   // one program that is any of the reference plugins by the name it is called by
	Version     string // empty if unknown
	VersionFrom VersionFrom
	Module      string // whose version it is; versions of different modules do not compare
	Package     string // import path of the main package, where the file is Go's
	Go          string // version of the Go toolchain
}

// Describe reads what a plugin's file of the given size says of itself. The file is not run, and what is read of it and kept
// in memory is bounded whatever it claims. What it does not say is left empty. Errors are those of Identify.
func Describe(r io.ReaderAt, size int64) (Description, error) {
	d := Description{VersionFrom: FromNowhere}
	var err error
	if d.Info, err = Identify(r, size); err != nil || d.Kind != ELF {
		return d, err
	}
	img, err := openImage(r, size)
	if err != nil {
		return Description{VersionFrom: FromNowhere}, err
	}
	info, err := img.buildInfo()
	if errors.Is(err, ErrNoBuildInfo) {
		return d, nil
	}
	if err != nil {
		return Description{VersionFrom: FromNowhere}, err
	}
	d.fromBuildInfo(info)
	if d.VersionFrom == FromNowhere || d.VersionFrom == FromMainModule && !released(d.Version) {
		version, err := img.stringVariable(buildVersion)
		if err != nil {
			return Description{VersionFrom: FromNowhere}, err
		}
		if version, ok := tidyVersion(version); ok {
			d.Version, d.VersionFrom, d.Module = version, FromSymbol, ReferenceModule
		}
	}
	return d, nil
}

// Build says in few words whose build it is: v1.6.2 (go1.23), unknown version (Debian-style build), script. It is empty if the
// file says nothing of that.
func (d Description) Build() string {
	switch {
	case d.Kind == Script:
		return "script"
	case d.Version != "" && d.Module != ReferenceModule:
		return fmt.Sprintf("%s of %s (%s)", d.Version, d.Module, d.Go)
	case d.Version != "" && d.Go != "":
		return fmt.Sprintf("%s (%s)", d.Version, d.Go)
	case d.Version != "":
		return d.Version
	case strings.HasPrefix(d.Package, ReferenceModule+"/"):
		return "unknown version (Debian-style build)" // in a tree without a module: that loses the version
	case d.Go != "":
		return fmt.Sprintf("unknown version (%s)", d.Go)
	}
	return ""
}

// buildVersion is the variable that upstream's release sets when it links a plugin.
const buildVersion = ReferenceModule + "/pkg/utils/buildversion.BuildVersion"

func (d *Description) fromBuildInfo(info *debug.BuildInfo) {
	if plainText(info.GoVersion) {
		d.Go = info.GoVersion
	}
	if plainText(info.Path) {
		d.Package = info.Path
	}
	main := info.Main
	var reference *debug.Module
	for _, dep := range info.Deps {
		if dep.Path == ReferenceModule {
			reference = dep
			if dep.Replace != nil {
				reference = dep.Replace
			}
		}
	}
	switch {
	// This project's own build, whose main module exists to require the plugins.
	case reference != nil && strings.HasSuffix(main.Path, "/upstream/plugins") && info.Path == main.Path:
		d.Multicall = true
		if version, ok := tidyVersion(reference.Version); ok {
			d.Version, d.VersionFrom, d.Module = version, FromDependency, ReferenceModule
			return
		}
	// A main package where upstream has none: k3s and others add one in a tree of their own.
	case main.Path == ReferenceModule && info.Path == main.Path:
		d.Multicall = true
	default:
		d.Name = programName(info.Path)
	}

	version, ok := tidyVersion(main.Version)
	if ok = ok && plainText(main.Path); ok && released(version) {
		d.Version, d.VersionFrom, d.Module = version, FromMainModule, main.Path
		return
	}
	for _, s := range info.Settings {
		if s.Key == "-ldflags" {
			if version, module, ok := versionInFlags(s.Value, main.Path); ok {
				d.Version, d.VersionFrom, d.Module = version, FromLDFlags, module
				return
			}
		}
	}
	if ok { // that of a commit: better than none
		d.Version, d.VersionFrom, d.Module = version, FromMainModule, main.Path
	}
}

var majorVersion = compiled(`^v[0-9]+$`)

// programName is what the Go command calls the program of a main package.
func programName(pkg string) string {
	name := path.Base(pkg)
	if majorVersion().MatchString(name) {
		name = path.Base(path.Dir(pkg))
	}
	if name == "command-line-arguments" || CheckName(name) != nil {
		return ""
	}
	return name
}

// versionInFlags looks for a version that the linker was told to set: upstream's own variable, else one that is called a
// version, in which case it is the main module's.
func versionInFlags(flags, main string) (version, module string, ok bool) {
	words := splitFlags(flags)
	for i, word := range words {
		var set string
		switch name, value, joined := strings.Cut(strings.TrimLeft(word, "-"), "="); {
		case !strings.HasPrefix(word, "-") || name != "X":
			continue
		case joined:
			set = value
		case i+1 < len(words):
			set = words[i+1]
		}
		variable, value, _ := strings.Cut(set, "=")
		value, valid := tidyVersion(value)
		if !valid {
			continue
		}
		if variable == buildVersion {
			return value, ReferenceModule, true
		}
		name := strings.ToLower(variable[strings.LastIndex(variable, ".")+1:])
		if !ok && plainText(main) && strings.HasSuffix(name, "version") && name != "goversion" {
			version, module, ok = value, main, true
		}
	}
	return version, module, ok
}

// splitFlags splits as the Go command does: at blanks that are not inside quotes.
func splitFlags(flags string) []string {
	var words []string
	var word strings.Builder
	var quote rune
	inside := false
	for _, c := range flags {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, inside = c, true
		case quote == 0 && (c == ' ' || c == '\t' || c == '\n' || c == '\r'):
			if inside {
				words = append(words, word.String())
				word.Reset()
				inside = false
			}
		default:
			word.WriteRune(c)
			inside = true
		}
	}
	if inside {
		words = append(words, word.String())
	}
	return words
}

var validVersion = compiled(`^[A-Za-z0-9][A-Za-z0-9._+~:-]{0,127}$`)

// tidyVersion returns s if it is something that could be a version.
func tidyVersion(s string) (string, bool) {
	if !validVersion().MatchString(s) || !strings.ContainsAny(s, "0123456789") {
		return "", false
	}
	return s, true
}

// plainText says whether a text from a file may be shown as it is.
func plainText(s string) bool {
	return s != "" && len(s) <= 512 && strings.IndexFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) < 0
}

// ErrNoBuildInfo says that a file has no build information of Go's: it is of another language, or packed, or damaged there.
var ErrNoBuildInfo = errors.New("no Go build information")

// BuildInfo returns the build information that the Go linker left in an executable's file of the given size, as
// debug/buildinfo does, which is not made for hostile files: here what is read and kept is bounded.
// Errors are ErrNoBuildInfo and those of Identify.
func BuildInfo(r io.ReaderAt, size int64) (*debug.BuildInfo, error) {
	img, err := openImage(r, size)
	if errors.Is(err, ErrNotExecutable) {
		err = ErrNoBuildInfo // a script
	}
	if err != nil {
		return nil, err
	}
	return img.buildInfo()
}

func openImage(r io.ReaderAt, size int64) (*image, error) {
	head := make([]byte, maxScriptLine)
	n, err := r.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if head = head[:n]; !bytes.HasPrefix(head, []byte(elf.ELFMAG)) {
		return nil, ErrNotExecutable
	}
	_, img, err := identifyELF(r, head, size)
	return img, err
}

// Bounds of what is looked at. Go's linker puts the build information first into its data; a C linker, somewhere into the
// first kilobytes of it.
const (
	maxSections    = 1 << 10
	maxSectionName = 64 << 10
	maxSearch      = 4 << 20 // bytes of data in which build information is looked for
	maxModules     = 1 << 20 // bytes of the list of modules; that of cilium-cni, the longest known, has 20 kB
	maxSymbols     = 64 << 20
	maxVersion     = 128
)

// read returns n bytes at off, or nil where they do not all lie in the file.
func (img *image) read(off uint64, n int) ([]byte, error) {
	if n <= 0 || off > uint64(img.size) || uint64(img.size)-off < uint64(n) {
		return nil, nil
	}
	b := make([]byte, n)
	_, err := img.r.ReadAt(b, int64(off))
	if err == io.EOF { // the file has become shorter
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// load returns n bytes of what would be at an address, or nil where the file has none for it.
func (img *image) load(addr uint64, n uint64, limit int) ([]byte, error) {
	if n == 0 || n > uint64(limit) {
		return nil, nil
	}
	for _, s := range img.segments {
		if addr >= s.vaddr && addr-s.vaddr < s.size && s.size-(addr-s.vaddr) >= n {
			return img.read(s.offset+(addr-s.vaddr), int(n))
		}
	}
	return nil, nil
}

// section is a part of the file that a linker has named. It may claim anything.
type section struct {
	name               string
	kind               elf.SectionType
	addr, offset, size uint64
	link               uint32
}

// sections returns the sections, none if the file has none or they are out of bounds: the kernel does not look at them.
func (img *image) sections() ([]section, error) {
	l, order := img.l, img.order
	n := int(order.Uint16(img.head[l.shnum:]))
	if n == 0 || n > maxSections || int(order.Uint16(img.head[l.shentsize:])) != l.section {
		return nil, nil
	}
	headers, err := img.read(l.word(order, img.head[l.shoff:]), n*l.section)
	if headers == nil {
		return nil, err
	}
	sections := make([]section, n)
	for i := range sections {
		h := headers[i*l.section:]
		sections[i] = section{
			kind: elf.SectionType(order.Uint32(h[4:])), addr: l.word(order, h[l.saddr:]),
			offset: l.word(order, h[l.soffset:]), size: l.word(order, h[l.ssize:]), link: order.Uint32(h[l.slink:]),
		}
	}
	names := int(order.Uint16(img.head[l.shstrndx:]))
	if names >= n {
		return sections, nil
	}
	text, err := img.read(sections[names].offset, int(min(sections[names].size, maxSectionName)))
	if err != nil {
		return nil, err
	}
	for i := range sections {
		if at := order.Uint32(headers[i*l.section:]); uint64(at) < uint64(len(text)) {
			name, _, _ := bytes.Cut(text[at:][:min(64, len(text)-int(at))], []byte{0})
			sections[i].name = string(name)
		}
	}
	return sections, nil
}

var buildInfoMagic = []byte("\xff Go buildinf:")

const (
	buildInfoAlign  = 16
	buildInfoHeader = 32
)

func (img *image) buildInfo() (*debug.BuildInfo, error) {
	addr, ok, err := img.findBuildInfo()
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, ErrNoBuildInfo
	}
	header, err := img.load(addr, buildInfoHeader, buildInfoHeader)
	if header == nil {
		return nil, cmp.Or(err, ErrNoBuildInfo)
	}
	var version, modules string
	if header[15]&2 != 0 { // since Go 1.18: two strings follow
		addr += buildInfoHeader
		if version, addr, err = img.varintString(addr); err == nil {
			modules, _, err = img.varintString(addr)
		}
	} else { // two pointers to strings, as they are in memory
		version, modules, err = img.pointedStrings(header)
	}
	if err != nil {
		return nil, err
	}
	// A module list is between two marks of 16 bytes.
	if n := len(modules); n >= 33 && modules[n-17] == '\n' {
		modules = modules[16 : n-16]
	} else {
		modules = ""
	}
	if version == "" {
		return nil, ErrNoBuildInfo
	}
	info, err := debug.ParseBuildInfo(modules)
	if err != nil {
		return nil, ErrNoBuildInfo
	}
	info.GoVersion = version
	return info, nil
}

// findBuildInfo returns the address of the build information: the section's, or else where its mark is in the data.
func (img *image) findBuildInfo() (uint64, bool, error) {
	sections, err := img.sections()
	if err != nil {
		return 0, false, err
	}
	for _, s := range sections {
		if s.name == ".go.buildinfo" {
			if b, err := img.load(s.addr, uint64(len(buildInfoMagic)), len(buildInfoMagic)); err != nil || bytes.Equal(b, buildInfoMagic) {
				return s.addr, err == nil, err
			}
		}
	}
	for _, s := range img.segments {
		if s.flags&(elf.PF_X|elf.PF_W) != elf.PF_W {
			continue
		}
		at, err := img.search(s.offset, min(s.size, maxSearch), func(chunk []byte, off uint64) int {
			for i := 0; ; i++ {
				n := bytes.Index(chunk[i:], buildInfoMagic)
				if n < 0 {
					return -1
				}
				if i += n; (s.vaddr+off+uint64(i))%buildInfoAlign == 0 {
					return i
				}
			}
		})
		if err != nil || at >= 0 {
			return s.vaddr + uint64(at), err == nil, err
		}
		break // as the linker and Go's own reader do: the first one
	}
	return 0, false, nil
}

// searchChunk is how much of a file is looked at at a time; overlap, how much of it is looked at again with what follows.
const (
	searchChunk   = 64 << 10
	searchOverlap = 256
)

// search reads size bytes at off piece by piece and returns where find found something, counted from off, or -1. find is
// given a piece and where it begins, also counted from off. What it looks for has at most searchOverlap bytes.
func (img *image) search(off, size uint64, find func(piece []byte, at uint64) int) (int64, error) {
	if off > uint64(img.size) || uint64(img.size)-off < size {
		return -1, nil
	}
	buf := make([]byte, min(size, searchChunk))
	for at := uint64(0); at < size; at += searchChunk - searchOverlap {
		chunk := buf[:min(uint64(len(buf)), size-at)]
		if _, err := img.r.ReadAt(chunk, int64(off+at)); err == io.EOF {
			return -1, nil
		} else if err != nil {
			return -1, err
		}
		if i := find(chunk, at); i >= 0 {
			return int64(at) + int64(i), nil
		}
		if at+uint64(len(chunk)) >= size {
			break
		}
	}
	return -1, nil
}

// varintString reads a string with its length in front, and returns the address that follows it.
func (img *image) varintString(addr uint64) (string, uint64, error) {
	var n uint64
	for shift := 0; ; shift += 7 {
		b, err := img.load(addr, 1, 1)
		if b == nil || shift > 28 {
			return "", 0, cmp.Or(err, ErrNoBuildInfo)
		}
		addr++
		n |= uint64(b[0]&0x7f) << shift
		if b[0]&0x80 == 0 {
			break
		}
	}
	if n == 0 {
		return "", addr, nil
	}
	b, err := img.load(addr, n, maxModules)
	if b == nil {
		return "", 0, cmp.Or(err, ErrNoBuildInfo)
	}
	return string(b), addr + n, nil
}

// pointedStrings reads the two strings that a header before Go 1.18 points to.
func (img *image) pointedStrings(header []byte) (version, modules string, err error) {
	width := int(header[14])
	if width != img.l.pointer() || (header[15]&1 != 0) != (img.order.String() == "BigEndian") {
		return "", "", ErrNoBuildInfo
	}
	for i, s := range []*string{&version, &modules} {
		p := img.l.word(img.order, header[16+i*width:])
		if p == 0 {
			continue
		}
		h, err := img.load(p, uint64(2*width), 2*width)
		if h == nil {
			return "", "", cmp.Or(err, ErrNoBuildInfo)
		}
		b, err := img.load(img.l.word(img.order, h), img.l.word(img.order, h[width:]), maxModules)
		if err != nil {
			return "", "", err
		}
		*s = string(b)
	}
	return version, modules, nil
}

// stringVariable returns what the linker was told to set a variable of type string to, from the symbol that it makes for
// that. Empty if there is none: a stripped file has none.
func (img *image) stringVariable(name string) (string, error) {
	sections, err := img.sections()
	if err != nil {
		return "", err
	}
	for _, s := range sections {
		if s.kind != elf.SHT_SYMTAB || int(s.link) >= len(sections) || s.size > maxSymbols || sections[s.link].size > maxSymbols {
			continue
		}
		names := sections[s.link]
		want := append([]byte(name), ".str\x00"...)
		at, err := img.search(names.offset, names.size, func(chunk []byte, _ uint64) int { return bytes.Index(chunk, want) })
		if err != nil || at < 0 {
			return "", err
		}
		return img.symbolText(s, uint32(at))
	}
	return "", nil
}

// symbolText returns the bytes of the symbol whose name is at the given place among the names.
func (img *image) symbolText(s section, name uint32) (string, error) {
	l, order := img.l, img.order
	const piece = 512 // symbols
	for at, left := s.offset, s.size/uint64(l.symbol); left > 0; {
		n := min(left, piece)
		b, err := img.read(at, int(n)*l.symbol)
		if b == nil {
			return "", err
		}
		for ; len(b) > 0; b = b[l.symbol:] {
			if order.Uint32(b) == name {
				text, err := img.load(l.word(order, b[l.value:]), l.word(order, b[l.ssizeof:]), maxVersion)
				text, _, _ = bytes.Cut(text, []byte{0}) // the linker adds one
				return string(text), err
			}
		}
		at, left = at+n*uint64(l.symbol), left-n
	}
	return "", nil
}
