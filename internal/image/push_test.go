package image

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/logs"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// newRegistry serves a registry on the loopback, behind what wrap makes of it. It returns its host and port.
func newRegistry(t *testing.T, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	handler := registry.New(registry.Logger(log.New(&bytes.Buffer{}, "", 0)))
	if wrap != nil {
		handler = wrap(handler)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func TestPushAndPull(t *testing.T) {
	img := build(t, bothPlatforms(t))
	host := newRegistry(t, nil)
	var reported []Done
	push := Push{Keychain: authn.NewMultiKeychain(), Progress: func(d Done) { reported = append(reported, d) }}
	ref, err := push.Push(t.Context(), img, host+"/chandler-cni/multus:v4.3.0")
	if err != nil {
		t.Fatal(err)
	}
	if want := host + "/chandler-cni/multus@" + img.Digest; ref != want {
		t.Errorf("pushed %s, want %s", ref, want)
	}
	if last := len(reported) - 1; last < 0 || reported[last].Bytes != reported[last].Total || reported[last].Bytes == 0 {
		t.Errorf("progress ended at %v", reported)
	}
	by, err := name.NewDigest(ref)
	if err != nil {
		t.Fatal(err)
	}
	pulled, err := remote.Index(by)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(pulled); err != nil {
		t.Error(err)
	}
	tag, _ := name.NewTag(host + "/chandler-cni/multus:v4.3.0")
	if d, err := remote.Head(tag); err != nil || d.Digest.String() != img.Digest {
		t.Errorf("the tag is %v, %v", d, err)
	}
	if again, err := push.Push(t.Context(), img, host+"/chandler-cni/multus:v4.3.0"); err != nil || again != ref {
		t.Errorf("pushed again: %s, %v", again, err)
	}
}

// failing answers the first times requests of each kind with status. Uploads are one kind, though each has its own path.
func failing(times, status int) func(http.Handler) http.Handler {
	var mu sync.Mutex
	seen := make(map[string]int)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			key, _, _ := strings.Cut(r.Method+" "+r.URL.Path, "/uploads/")
			seen[key]++
			fail := seen[key] <= times
			mu.Unlock()
			if fail {
				w.WriteHeader(status)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

func TestPushIsTriedAgain(t *testing.T) {
	img := build(t, Spec{Platforms: []Platform{newPlatform(t, "amd64")}})
	push := Push{Keychain: authn.NewMultiKeychain(), Pause: time.Millisecond}
	for _, status := range []int{http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusBadGateway} {
		if _, err := push.Push(t.Context(), img, newRegistry(t, failing(2, status))+"/multus:v1"); err != nil {
			t.Errorf("after two answers of %d: %v", status, err)
		}
	}
	_, err := push.Push(t.Context(), img, newRegistry(t, failing(1000, http.StatusServiceUnavailable))+"/multus:v1")
	if err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("of a registry that is always unavailable: %v", err)
	}
}

// withBasicAuth lets nobody in but user with password.
func withBasicAuth(user, password string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if u, p, ok := r.BasicAuth(); !ok || u != user || p != password {
				w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
				w.WriteHeader(http.StatusUnauthorized)
				fmt.Fprint(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// login is a keychain of one login for every registry.
type login authn.AuthConfig

func (l login) Resolve(authn.Resource) (authn.Authenticator, error) {
	return authn.FromConfig(authn.AuthConfig(l)), nil
}

func TestPushWithALogin(t *testing.T) {
	var logged bytes.Buffer
	for _, l := range []*log.Logger{logs.Warn, logs.Progress, logs.Debug} {
		l.SetOutput(&logged)
		t.Cleanup(func() { l.SetOutput(new(bytes.Buffer)) })
	}
	img := build(t, Spec{Platforms: []Platform{newPlatform(t, "amd64")}})
	host := newRegistry(t, withBasicAuth("ci", "right-secret"))
	try := func(k authn.Keychain) error {
		_, err := Push{Keychain: k, Pause: time.Millisecond}.Push(t.Context(), img, host+"/multus:v1")
		return err
	}
	if err := try(login{Username: "ci", Password: "right-secret"}); err != nil {
		t.Errorf("with the right login: %v", err)
	}
	for name, k := range map[string]authn.Keychain{"a wrong login": login{Username: "ci", Password: "wrong-secret"}, "no login": authn.NewMultiKeychain()} {
		err := try(k)
		var auth *AuthError
		if !errors.As(err, &auth) || auth.Denied || auth.Registry != host {
			t.Errorf("with %s: %v", name, err)
			continue
		}
		logged.WriteString(err.Error())
	}
	for _, secret := range []string{"right-secret", "wrong-secret", "Y2k6cmlnaHQtc2VjcmV0", "Y2k6d3Jvbmctc2VjcmV0"} {
		if strings.Contains(logged.String(), secret) {
			t.Errorf("%s was written somewhere", secret)
		}
	}
}

func TestPushDenied(t *testing.T) {
	img := build(t, Spec{Platforms: []Platform{newPlatform(t, "amd64")}})
	host := newRegistry(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	_, err := Push{Keychain: authn.NewMultiKeychain()}.Push(t.Context(), img, host+"/multus:v1")
	var auth *AuthError
	if !errors.As(err, &auth) || !auth.Denied {
		t.Error(err)
	}
}

// A registry that says it has stored what it has not must not be believed.
func TestPushIsReadBack(t *testing.T) {
	img := build(t, Spec{Platforms: []Platform{newPlatform(t, "amd64")}})
	host := newRegistry(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/v1") {
				w.WriteHeader(http.StatusCreated)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	_, err := Push{Keychain: authn.NewMultiKeychain()}.Push(t.Context(), img, host+"/multus:v1")
	if err == nil || !strings.Contains(err.Error(), "read back") {
		t.Error(err)
	}
}

func TestPushRefusesNames(t *testing.T) {
	for _, ref := range []string{"", "UPPER/case", "ghcr.io/a/b@sha256:" + strings.Repeat("0", 64), "a b", "ghcr.io/a:b:c"} {
		if _, err := CheckName(ref); err == nil {
			t.Errorf("%q is a name", ref)
		}
	}
	if full, err := CheckName("ghcr.io/chandler-cni/multus"); err != nil || full != "ghcr.io/chandler-cni/multus:latest" {
		t.Errorf("%s, %v", full, err)
	}
}
