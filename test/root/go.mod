module github.com/chandler-cni/chandler/test/root

go 1.26.0

require (
	github.com/chandler-cni/chandler v0.0.0
	github.com/containernetworking/cni v1.3.1
	github.com/google/go-cmp v0.7.0
	golang.org/x/sys v0.50.0
)

require (
	go.opentelemetry.io/otel v1.29.0 // indirect
	go.opentelemetry.io/otel/trace v1.29.0 // indirect
	golang.org/x/mod v0.43.0 // indirect
)

replace github.com/chandler-cni/chandler => ../..
