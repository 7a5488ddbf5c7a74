package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// pod is a network namespace that stands for a pod's.
type pod struct {
	name, path string
	address    netip.Prefix
}

// open makes the namespace and gives it a name at path.
func (p *pod) open(path string) error {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	p.path = path
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		return unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, "")
	})
}

func (p *pod) close() {
	if p.path != "" {
		unix.Unmount(p.path, unix.MNT_DETACH)
	}
}

// inside runs do in the namespace.
func (p *pod) inside(do func() error) error {
	return onThread(func() error {
		fd, err := unix.Open(p.path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("setns: %w", err)
		}
		return do()
	})
}

// onThread runs do on an operating system's thread of its own, which is given up afterwards: its namespace may be another.
func onThread(do func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		result <- do()
	}()
	return <-result
}

// attach adds net1 to the pod, as a runtime does, and returns the address that the pod then really has.
func (d demo) attach(p *pod, conf string) (netip.Prefix, error) {
	out, err := d.cni("ADD", p, conf)
	if err != nil {
		return netip.Prefix{}, err
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal(out, &result); err != nil || len(result.IPs) != 1 {
		return netip.Prefix{}, fmt.Errorf("ADD answered %s: %w", out, err)
	}
	want := result.IPs[0].Address
	return want, p.inside(func() error {
		dev, err := net.InterfaceByName("net1")
		if err != nil {
			return err
		}
		addresses, err := dev.Addrs()
		if err != nil {
			return err
		}
		for _, a := range addresses {
			if a.String() == want.String() {
				return nil
			}
		}
		return fmt.Errorf("net1 has %v, not %s", addresses, want)
	})
}

func (d demo) cni(command string, p *pod, conf string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(filepath.Join(d.binDir, "bridge"))
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + p.name, "CNI_NETNS=" + p.path,
		"CNI_IFNAME=net1", "CNI_PATH=" + d.binDir, "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader([]byte(conf)), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("bridge %s for %s: %w: %s%s", command, p.name, err, &stdout, &stderr)
	}
	return stdout.Bytes(), nil
}

// ping sends count echo requests from the pod, waits for each answer, and returns the shortest round trip.
func (p *pod) ping(to netip.Addr, count int) (best time.Duration, err error) {
	err = p.inside(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		if err != nil {
			return fmt.Errorf("socket: %w", err)
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 2}); err != nil {
			return err
		}
		for seq := range count {
			start := time.Now()
			if err := unix.Sendto(fd, echoRequest(uint16(seq)), 0, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
				return fmt.Errorf("send: %w", err)
			}
			if err := awaitReply(fd, uint16(seq)); err != nil {
				return err
			}
			if took := time.Since(start); best == 0 || took < best {
				best = took
			}
		}
		return nil
	})
	return best, err
}

const (
	echoRequestType = 8
	echoReplyType   = 0
	echoID          = 0xc4a7
)

func echoRequest(seq uint16) []byte {
	m := make([]byte, 16)
	m[0] = echoRequestType
	binary.BigEndian.PutUint16(m[4:], echoID)
	binary.BigEndian.PutUint16(m[6:], seq)
	var sum uint32
	for i := 0; i < len(m); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(m[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(m[2:], ^uint16(sum+sum>>16))
	return m
}

func awaitReply(fd int, seq uint16) error {
	buf := make([]byte, 1500)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("no answer: %w", err)
		}
		header := int(buf[0]&0x0f) * 4
		if n < header+8 {
			return errors.New("short packet")
		}
		m := buf[header:n]
		if m[0] == echoReplyType && binary.BigEndian.Uint16(m[4:]) == echoID && binary.BigEndian.Uint16(m[6:]) == seq {
			return nil
		}
	}
}
