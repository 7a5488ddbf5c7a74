// Command probe is all that sandboxes and test pods run: it waits, serves and calls. It links nothing and needs no file.
//
//	probe                        wait until told to end
//	probe serve PORT             answer calls on a TCP port
//	probe call ADDRESS WORDS...  say words to it and print what it answers
//	probe load ADDRESS BYTES     send that much and print the seconds until all has arrived
//
// A server answers "hello" with the caller's address as it sees it, "load N" with a line once N bytes have come, and
// anything else with the same words.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
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
	}
	return fmt.Errorf("wrong usage: %q", args)
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
