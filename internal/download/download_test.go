package download

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func shorten(t *testing.T) {
	oldPause, oldSilence := pause, silence
	pause, silence = time.Millisecond, 200*time.Millisecond
	t.Cleanup(func() { pause, silence = oldPause, oldSilence })
}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func content(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return string(b)
}

// torn sends the beginning of a text and hangs up.
func torn(w http.ResponseWriter, text string, n int) {
	w.Header().Set("Content-Length", strconv.Itoa(n+1))
	_, _ = io.WriteString(w, text[:n])
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

func TestBytes(t *testing.T) {
	want := content(300 << 10)
	var seen []int64
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "" {
			t.Error("asks for another encoding")
		}
		w.Header().Set("Content-Encoding", "gzip") // as some servers say of a .tgz
		w.Header().Set("Content-Length", "307200")
		_, _ = io.WriteString(w, want)
	})
	got, err := Request{URL: url, Limit: int64(len(want)), Progress: func(done, total int64) {
		seen = append(seen, done)
		if total != int64(len(want)) {
			t.Errorf("%d bytes in all", total)
		}
	}}.Bytes(t.Context())
	if err != nil || string(got) != want {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if !slices.IsSorted(seen) || seen[0] != 0 || seen[len(seen)-1] > int64(len(want)) {
		t.Errorf("progress %v", seen)
	}
}

// A transfer that breaks is tried again; where the server can, from where it broke.
func TestRetry(t *testing.T) {
	shorten(t)
	want := content(1000)
	for _, resumes := range []bool{false, true} {
		var n atomic.Int32
		var ranges []string
		url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			ranges = append(ranges, r.Header.Get("Range"))
			if resumes {
				w.Header().Set("ETag", `"one"`)
				w.Header().Set("Accept-Ranges", "bytes")
			}
			switch n.Add(1) {
			case 1:
				http.Error(w, "later", http.StatusServiceUnavailable)
			case 2:
				torn(w, want, 400)
			case 3:
				panic(http.ErrAbortHandler)
			default:
				http.ServeContent(w, r, "", time.Time{}, strings.NewReader(want))
			}
		})
		f, err := os.Create(filepath.Join(t.TempDir(), "file"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := (Request{URL: url, Limit: 1 << 20}).File(t.Context(), f); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(f.Name()); err != nil || string(got) != want {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		last := ""
		if resumes {
			last = "bytes=400-"
		}
		if ranges[len(ranges)-1] != last || len(ranges) != 4 {
			t.Errorf("asked for %q", ranges)
		}
	}
}

// A server that has something else by now sends it whole.
func TestRetryAnotherFile(t *testing.T) {
	shorten(t)
	old, want := content(1000), content(900)
	var n atomic.Int32
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Accept-Ranges", "bytes")
		if n.Add(1) == 1 {
			w.Header().Set("ETag", `"one"`)
			torn(w, old, 400)
		}
		w.Header().Set("ETag", `"two"`)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(want))
	})
	got, err := Request{URL: url, Limit: 1 << 20}.Bytes(t.Context())
	if err != nil || string(got) != want {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestFails(t *testing.T) {
	shorten(t)
	var status *StatusError
	var large *TooLargeError
	for _, test := range []struct {
		name    string
		handler http.HandlerFunc
		tries   int32
		is      func(error) bool
		want    string
	}{
		{"absent", http.NotFound, 1, func(err error) bool { return errors.As(err, &status) && status.Code == 404 }, "404 Not Found"},
		{"always broken", func(w http.ResponseWriter, _ *http.Request) { torn(w, "abc", 3) }, attempts,
			func(err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) }, "after 3 bytes: unexpected EOF (the last of 5 attempts)"},
		{"always unwell", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "", http.StatusBadGateway) }, attempts,
			func(err error) bool { return errors.As(err, &status) }, "502 Bad Gateway (the last of 5 attempts)"},
		{"says that it is large", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "101") }, 1,
			func(err error) bool { return errors.As(err, &large) }, "more than 100 bytes"},
		{"is large", func(w http.ResponseWriter, _ *http.Request) {
			for range 50 {
				_, _ = io.WriteString(w, content(1<<10))
				_ = http.NewResponseController(w).Flush()
			}
		}, 1, func(err error) bool { return errors.As(err, &large) }, "more than 100 bytes"},
		{"redirects for ever", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/more", http.StatusFound) }, maxRedirects + 1,
			func(error) bool { return true }, "more than 5 redirects"},
		{"silent", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "90")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, attempts, func(err error) bool { return errors.Is(err, errSilent) }, "the server has stopped sending"},
		{"a part that nobody asked for", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusPartialContent) }, 1,
			func(err error) bool { return errors.As(err, &status) }, "206"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var n atomic.Int32
			url := serve(t, func(w http.ResponseWriter, r *http.Request) { n.Add(1); test.handler(w, r) })
			url = strings.Replace(url, "http://", "http://user:secret@", 1)
			_, err := Request{URL: url, Limit: 100}.Bytes(t.Context())
			if err == nil || !test.is(err) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v; want %q", err, test.want)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("tells a password: %v", err)
			}
			if n.Load() != test.tries {
				t.Errorf("tried %d times, want %d", n.Load(), test.tries)
			}
		})
	}
}

func TestNobodyThere(t *testing.T) {
	shorten(t)
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	if _, err := (Request{URL: s.URL, Limit: 1}).Bytes(t.Context()); err == nil || !strings.Contains(err.Error(), "connection refused (the last of 5 attempts)") {
		t.Error(err)
	}
}

// A server that is not who it should be is not asked again.
func TestUntrusted(t *testing.T) {
	var n atomic.Int32
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			n.Add(1)
		}
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	var cert *tls.CertificateVerificationError
	if _, err := (Request{URL: s.URL, Limit: 1}).Bytes(t.Context()); !errors.As(err, &cert) || n.Load() != 1 {
		t.Errorf("%v, after %d connections", err, n.Load())
	}
}

func TestRedirect(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/there" {
			_, _ = io.WriteString(w, "here")
			return
		}
		http.Redirect(w, r, "/there", http.StatusFound)
	})
	if got, err := (Request{URL: url, Limit: 10}).Bytes(t.Context()); err != nil || string(got) != "here" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestCancelled(t *testing.T) {
	because := errors.New("because")
	ctx, cancel := context.WithCancelCause(t.Context())
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "90")
		_ = http.NewResponseController(w).Flush()
		cancel(because)
		<-r.Context().Done()
	})
	if _, err := (Request{URL: url, Limit: 100}).Bytes(ctx); !errors.Is(err, because) {
		t.Error(err)
	}
}

func TestCheckURL(t *testing.T) {
	for _, good := range []string{"https://github.com/a/b.tgz", "http://127.0.0.1:8080/x"} {
		if err := CheckURL(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "file:///etc/passwd", "ftp://x/y", "github.com/a", "https:///x", "http://[::1", "%"} {
		if CheckURL(bad) == nil {
			t.Errorf("%q is one", bad)
		}
	}
}
