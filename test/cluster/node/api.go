package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Object is one object of the API as JSON has it.
type Object = map[string]any

// API is a client of the node's API server. It is an administrator.
type API struct {
	client *http.Client
	token  string
}

// StatusError is an answer that is none of the 2xx.
type StatusError struct {
	Method, Path string
	Code         int
	Message      string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s %s: %d: %s", e.Method, e.Path, e.Code, e.Message)
}

// NotFound says whether the error is the API server's word that there is no such object.
func NotFound(err error) bool {
	var status *StatusError
	return errors.As(err, &status) && status.Code == http.StatusNotFound
}

// newAPI is a client that connects from the network namespace of the process, or from its own if that is 0.
func newAPI(dir Dir, pid int) (*API, error) {
	data, err := os.ReadFile(dir.Kubeconfig())
	if err != nil {
		return nil, err
	}
	var config struct {
		Clusters []struct {
			Cluster struct {
				CA []byte `json:"certificate-authority-data"`
			}
		}
		Users []struct{ User struct{ Token string } }
	}
	if err := json.Unmarshal(data, &config); err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(config.Clusters[0].Cluster.CA)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: 16}
	if pid != 0 {
		transport.DialContext = dialFrom(fmt.Sprintf("/proc/%d/ns/net", pid))
	}
	return &API{client: &http.Client{Transport: transport, Timeout: time.Minute}, token: config.Users[0].User.Token}, nil
}

// dialFrom connects out of another network namespace. A thread that cannot be brought back ends with its goroutine.
func dialFrom(namespace string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		type result struct {
			conn net.Conn
			err  error
		}
		got := make(chan result, 1)
		go func() {
			runtime.LockOSThread()
			conn, home, err := func() (net.Conn, bool, error) {
				own, err := os.Open("/proc/thread-self/ns/net")
				if err != nil {
					return nil, true, err
				}
				defer own.Close()
				theirs, err := os.Open(namespace)
				if err != nil {
					return nil, true, err
				}
				defer theirs.Close()
				if err := unix.Setns(int(theirs.Fd()), unix.CLONE_NEWNET); err != nil {
					return nil, true, err
				}
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				return conn, unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil, err
			}()
			if home {
				runtime.UnlockOSThread()
			}
			got <- result{conn, err}
		}()
		r := <-got
		return r.conn, r.err
	}
}

// Do sends one request and returns the object that came back.
func (a *API) Do(method, path, contentType string, body []byte) (Object, error) {
	request, err := http.NewRequest(method, "https://127.0.0.1:"+apiPort+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+a.token)
	request.Header.Set("Content-Type", contentType)
	response, err := a.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	var object Object
	bad := json.Unmarshal(data, &object)
	if response.StatusCode/100 != 2 {
		message := Text(object, "message")
		if message == "" {
			message = string(data)
		}
		return nil, &StatusError{Method: method, Path: path, Code: response.StatusCode, Message: message}
	}
	return object, bad
}

// Healthy is nil once the API server serves.
func (a *API) Healthy() error {
	_, err := a.Do(http.MethodGet, "/readyz", "", nil)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return nil // it says "ok", which is no object
	}
	return err
}

// Get reads one object or one list.
func (a *API) Get(path string) (Object, error) { return a.Do(http.MethodGet, path, "", nil) }

// Delete deletes one object or, at a list's path, all of them.
func (a *API) Delete(path string) error {
	_, err := a.Do(http.MethodDelete, path, "", nil)
	return err
}

// Create makes one object at its list's path. A field that the API server does not know is refused.
func (a *API) Create(path string, object Object) (Object, error) {
	body, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	return a.Do(http.MethodPost, path+"?fieldValidation=Strict", "application/json", body)
}

// At walks down an object by its keys; nil where that leads nowhere.
func At(v any, path ...string) any {
	for _, key := range path {
		m, _ := v.(Object)
		v = m[key]
	}
	return v
}

// Text is the string at the path, or empty.
func Text(v any, path ...string) string {
	s, _ := At(v, path...).(string)
	return s
}

// List is the list at the path, or empty.
func List(v any, path ...string) []any {
	l, _ := At(v, path...).([]any)
	return l
}
