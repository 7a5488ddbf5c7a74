module github.com/chandler-cni/chandler/test/guest

go 1.26.0

require (
	github.com/containernetworking/cni v1.3.0
	github.com/vishvananda/netlink v1.3.1
	golang.org/x/sys v0.50.0
)

require github.com/vishvananda/netns v0.0.5 // indirect
