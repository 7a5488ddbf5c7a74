module github.com/chandler-cni/chandler/test/faults

go 1.26.0

require (
	github.com/chandler-cni/chandler v0.0.0
	github.com/hanwen/go-fuse/v2 v2.12.1
	golang.org/x/sys v0.50.0
)

require golang.org/x/mod v0.43.0 // indirect

replace github.com/chandler-cni/chandler => ../..
