// Command probe is all that sandboxes and test pods run: it waits, serves and calls. It links nothing and needs no file.
//
//	probe                        wait until told to end
//	probe serve PORT             answer calls on a TCP port
//	probe call ADDRESS WORDS...  say words to it and print what it answers
//	probe load ADDRESS BYTES     send that much and print the seconds until all has arrived
//	probe write HOW DIR NAMES... write other bytes to the files again and again, as other installers do
//
// HOW is "rename", which publishes whole files, or "place", which truncates and writes what is there, as cp -f does.
// A server answers "hello" with the caller's address as it sees it, "load N" with a line once N bytes have come, and
// anything else with the same words.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 0:
		wait()
		return nil
	case args[0] == "serve" && len(args) == 2:
		listener, err := net.Listen("tcp", ":"+args[1])
		if err != nil {
			return err
		}
		go serve(listener)
		wait()
		return nil
	case args[0] == "call" && len(args) > 2:
		answer, err := call(args[1], strings.Join(args[2:], " "), 0)
		if err != nil {
			return err
		}
		fmt.Println(answer)
		return nil
	case args[0] == "load" && len(args) == 3:
		var size int64
		if _, err := fmt.Sscan(args[2], &size); err != nil {
			return err
		}
		start := time.Now()
		if _, err := call(args[1], fmt.Sprint("load ", size), size); err != nil {
			return err
		}
		fmt.Printf("%.2f\n", time.Since(start).Seconds())
		return nil
	case args[0] == "write" && len(args) > 3:
		return write(args[1], args[2], args[3:])
	}
	return fmt.Errorf("wrong usage: %q", args)
}

// write stands for an installer with an opinion of its own: of each name it takes what it finds and adds a mark, so that its
// files are never those of a bundle and run all the same.
func write(how, dir string, names []string) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	own := map[string][]byte{}
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		own[name] = append(data, "another build"...)
	}
	for {
		for _, name := range names {
			file := filepath.Join(dir, name)
			switch how {
			case "rename":
				if err := os.WriteFile(file+".other", own[name], 0o755); err != nil {
					return err
				}
				if err := os.Rename(file+".other", file); err != nil {
					return err
				}
			case "place":
				err := os.WriteFile(file, own[name], 0o755)
				if errors.Is(err, unix.ETXTBSY) {
					// What cp -f does then.
					if err = os.Remove(file); err == nil {
						err = os.WriteFile(file, own[name], 0o755)
					}
				}
				if err != nil && !errors.Is(err, unix.ETXTBSY) && !errors.Is(err, os.ErrNotExist) {
					return err
				}
			default:
				return fmt.Errorf("no such way to write: %s", how)
			}
		}
		select {
		case <-signals:
			return nil
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// wait ends on the signals that end a container. A sandbox's process is the first of its namespace and must reap.
func wait() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGCHLD)
	for s := range signals {
		if s != unix.SIGCHLD {
			return
		}
		for {
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}

func serve(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			in := bufio.NewReader(conn)
			for {
				line, err := in.ReadString('\n')
				if err != nil {
					return
				}
				answer := strings.TrimSuffix(line, "\n")
				var size int64
				if answer == "hello" {
					answer, _, _ = net.SplitHostPort(conn.RemoteAddr().String())
				} else if _, err := fmt.Sscanf(answer, "load %d", &size); err == nil {
					if _, err := io.CopyN(io.Discard, in, size); err != nil {
						return
					}
				}
				if _, err := fmt.Fprintln(conn, answer); err != nil {
					return
				}
			}
		}()
	}
}

func call(address, words string, load int64) (string, error) {
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	// A container that runs has not always opened its port yet.
	for tries := 0; errors.Is(err, unix.ECONNREFUSED) && tries < 50; tries++ {
		time.Sleep(100 * time.Millisecond)
		conn, err = net.DialTimeout("tcp", address, 5*time.Second)
	}
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(conn, words); err != nil {
		return "", err
	}
	block := make([]byte, 64<<10)
	for load > 0 {
		n, err := conn.Write(block[:min(load, int64(len(block)))])
		if err != nil {
			return "", err
		}
		load -= int64(n)
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSuffix(answer, "\n"), err
}
