// Package rig is what the rings of tests that need root are built on: root, faults, and faults' package disk.
//
//   - Ring: how a ring runs. It runs itself once more in namespaces of its own (mounts, processes, for some the network): what it
//     mounts, starts or configures is gone with them, however it ends. It keeps what it makes in a tmpfs there.
//   - Call: a run of chandler; Outcome: what that left for its user.
//   - Watchers: other processes that look at the bin dir all the time; Actor: any other process of a test.
//   - Holds, Whole, Clean, Kept, Unchanged: what a bin dir is to be; Derive and Compose: bundles to stage into it.
//
// A ring takes the program from CHANDLER, the bundle of the fourteen reference plugins from BUNDLE, and the same plugins built in the
// other form (one file under all names, or each a file of its own) from OTHER_BUNDLE, all absolute paths. If anything that it needs is
// missing it says so and fails: it never skips.
package rig
