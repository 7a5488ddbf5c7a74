module github.com/chandler-cni/chandler/test/faults

go 1.26.0

require golang.org/x/sys v0.50.0
