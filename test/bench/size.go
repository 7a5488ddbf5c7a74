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
	"slices"

	"github.com/chandler-cni/chandler/internal/pins"
)

// sizes compares what goes over the wire: the bin/ of each form, and the same plugins built here as upstream builds its
// releases, each as one tar.gz.
func (e *env) sizes(upstream string) error {
	style, err := e.upstreamStyle(upstream)
	if err != nil {
		return fmt.Errorf("build as upstream does: %w", err)
	}
	packed := make(map[string]int64)
	for _, c := range []struct{ name, dir string }{
		{"as upstream builds", style},
		{separate, filepath.Join(e.bundles[separate], "bin")},
		{multicall, filepath.Join(e.bundles[multicall], "bin")},
	} {
		bytes, wire, err := pack(c.dir)
		if err != nil {
			return err
		}
		packed[c.name] = wire
		fmt.Printf("bin/, %s: %.2f MB, %.2f MB as one tar.gz\n", c.name, float64(bytes)/1e6, float64(wire)/1e6)
	}
	fmt.Printf("multicall is 1/%.1f of upstream's way on the wire (asked 1/16); asked at most 5.8 MB and 2.4 MB\n",
		float64(packed["as upstream builds"])/float64(packed[multicall]))
	return nil
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
