package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/chandler-cni/chandler/internal/pins"
)

// sizes compares what goes over the wire: the bin/ of each form, and the same plugins built here as upstream builds its
// releases, each as one tar.gz.
func (e *env) sizes(w io.Writer, upstream string) error {
	style, err := e.upstreamStyle(upstream)
	if err != nil {
		return fmt.Errorf("build as upstream does: %w", err)
	}
	packed := make(map[string]int64)
	for _, c := range []struct{ name, dir, asked string }{
		{"as upstream builds", style, ""},
		{separate, filepath.Join(e.bundles[separate], "bin"), ""},
		{multicall, filepath.Join(e.bundles[multicall], "bin"), "5.8 MB; 2.4 MB"},
	} {
		bytes, wire, err := pack(c.dir)
		if err != nil {
			return err
		}
		packed[c.name] = wire
		fmt.Fprintf(w, "| `bin/`, %s; as one tar.gz | %.2f MB; %.2f MB | %s |\n", c.name, float64(bytes)/1e6, float64(wire)/1e6, c.asked)
	}
	fmt.Fprintf(w, "| multicall against upstream's way, as tar.gz | 1/%.1f | 1/16 |\n",
		float64(packed["as upstream builds"])/float64(packed[multicall]))
	return e.images(w, style)
}

// upstreamStyle builds the pinned plugins with the flags of upstream's release script: static, and with their symbols.
func (e *env) upstreamStyle(upstream string) (string, error) {
	p, err := pins.Load(filepath.Join(upstream, pins.FileName))
	if err != nil {
		return "", err
	}
	out := filepath.Join(e.tmp, "upstream-style") + string(filepath.Separator)
	args := []string{"build", "-ldflags", "-extldflags -static -X " + p.Plugins.Module + "/pkg/utils/buildversion.BuildVersion=" + p.Plugins.Version, "-o", out}
	for _, s := range p.Plugins.Staged {
		args = append(args, p.Plugins.Package(s))
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = filepath.Join(upstream, pins.PluginsDir)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, text)
	}
	return out, nil
}

// images compares the image, with the bundle and with the plugins as upstream builds them.
func (e *env) images(w io.Writer, style string) error {
	packed := filepath.Join(e.tmp, "packed")
	if out, err := exec.Command(e.chandlerctl, "bundle", "pack", "--from", style, "--version", "v0", "--out", packed).CombinedOutput(); err != nil {
		return fmt.Errorf("pack what upstream builds: %w: %s", err, out)
	}
	for _, c := range []struct{ name, bundle, asked string }{
		{"with the multi-call bundle", e.bundles[multicall], "35 MB"}, {"with the plugins as upstream builds them", packed, ""},
	} {
		layout := filepath.Join(e.tmp, "image")
		cmd := exec.Command(e.chandlerctl, "image", "build", "--platform", "linux/"+runtime.GOARCH, "--bundle", runtime.GOARCH+"="+c.bundle, "--out", layout)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build an image: %w: %s", err, out)
		}
		var sum int64
		var layers []string
		err := filepath.WalkDir(filepath.Join(layout, "blobs"), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			if err == nil {
				if sum += info.Size(); info.Size() > 1e5 { // else it is a manifest or a configuration
					layers = append(layers, fmt.Sprintf("%.1f", float64(info.Size())/1e6))
				}
			}
			return err
		})
		if err := errors.Join(err, os.RemoveAll(layout)); err != nil {
			return err
		}
		fmt.Fprintf(w, "| the image for %s, %s, compressed; its layers | %.1f MB; %s MB | %s |\n", runtime.GOARCH, c.name, float64(sum)/1e6, strings.Join(layers, ", "), c.asked)
	}
	return nil
}

// pack returns the bytes of the distinct files in dir, and of dir as one tar.gz with hard links.
func pack(dir string) (bytes, wire int64, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, 0, err
	}
	var sum counter
	gz, err := gzip.NewWriterLevel(&sum, gzip.BestCompression)
	if err != nil {
		return 0, 0, err
	}
	tw := tar.NewWriter(gz)
	var first []os.FileInfo
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			return 0, 0, err
		}
		header := &tar.Header{Name: info.Name(), Mode: 0o755, Typeflag: tar.TypeReg, Size: info.Size()}
		if i := slices.IndexFunc(first, func(f os.FileInfo) bool { return os.SameFile(f, info) }); i >= 0 {
			header.Typeflag, header.Linkname, header.Size = tar.TypeLink, first[i].Name(), 0
		} else {
			first = append(first, info)
			bytes += info.Size()
		}
		if err := tw.WriteHeader(header); err != nil {
			return 0, 0, err
		}
		if header.Typeflag == tar.TypeLink {
			continue
		}
		if err := copyFile(tw, filepath.Join(dir, info.Name())); err != nil {
			return 0, 0, err
		}
	}
	if err := errors.Join(tw.Close(), gz.Close()); err != nil {
		return 0, 0, err
	}
	return bytes, int64(sum), nil
}

func copyFile(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}
