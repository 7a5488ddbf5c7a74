# The ring of tests that runs the plugins on Debian's kernel, in an emulated machine. The kernel's package lies in out/guest.
.PHONY: guest
guest: build bundle ## attach networks on a kernel that has every kind, in a virtual machine (as root)
	cd test/guest && GUEST=$(abspath $(OUT))/guest BUNDLE=$(abspath $(OUT))/bundle CHANDLER=$(abspath $(OUT))/chandler \
		go test -v -count=1 -timeout 20m ./...

.PHONY: ring-guest
ring-guest: guest ## ipvlan, vlan, vrf and VLAN filtering, which build machines' kernels have not
