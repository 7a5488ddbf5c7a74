// Package charts carries the data that the charts and the programs have in common, so that each fact is written once.
package charts

import _ "embed"

// Distributions is charts/multus/files/distributions.yaml; package distribution reads it.
//
//go:embed multus/files/distributions.yaml
var Distributions []byte
