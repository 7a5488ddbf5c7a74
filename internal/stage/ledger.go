package stage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// ledgerFormat is the newest version of ledger.json that this package reads, and the one it writes.
const ledgerFormat = 1

const maxLedger = 1 << 20 // bytes

// ledger is the record of what staging did to a bin dir. It serves reports; what must not be lost is in the names of the
// folder's files as well.
type ledger struct {
	FormatVersion int                    `json:"formatVersion"`
	Plugins       map[string]ledgerEntry `json:"plugins"`
}

type ledgerEntry struct {
	SHA256  string    `json:"sha256"`  // what was published
	Version string    `json:"version"` // of the bundle it came from
	Bundle  string    `json:"bundle"`  // sha256:<hex> of its bundle.json
	Staged  time.Time `json:"staged"`
	Before  State     `json:"before"` // what stood there when staging first came
}

// newerLedgerError says that a later chandler wrote the ledger.
type newerLedgerError struct{ version int }

func (e *newerLedgerError) Error() string {
	return fmt.Sprintf("format %d is newer than this chandler writes (%d)", e.version, ledgerFormat)
}

func parseLedger(data []byte) (*ledger, error) {
	var head struct {
		FormatVersion int `json:"formatVersion"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	if head.FormatVersion > ledgerFormat {
		return nil, &newerLedgerError{head.FormatVersion}
	}
	if head.FormatVersion != ledgerFormat {
		return nil, fmt.Errorf("format %d is unknown", head.FormatVersion)
	}
	l := new(ledger)
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(l); err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	return l, nil
}

// record adds to the ledger what this run published. A ledger that cannot be read is begun anew; one that a later chandler
// wrote is left as it is.
func (s *store) record(entries map[string]ledgerEntry) error {
	data, err := s.dir.ReadFile(ledgerName, maxLedger)
	l := &ledger{FormatVersion: ledgerFormat, Plugins: make(map[string]ledgerEntry)}
	var damaged error
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		damaged = err
	default:
		read, err := parseLedger(data)
		var newer *newerLedgerError
		switch {
		case errors.As(err, &newer):
			return fmt.Errorf("this run is not recorded: the ledger's %w", err)
		case err != nil:
			damaged = err
		case read.Plugins != nil:
			l = read
		}
	}
	for name, e := range entries {
		if before, ok := l.Plugins[name]; ok {
			e.Before = before.Before
		}
		l.Plugins[name] = e
	}
	if data, err = json.MarshalIndent(l, "", "  "); err != nil {
		return err
	}
	if err := s.writeLedger(append(data, '\n')); err != nil {
		return fmt.Errorf("this run is not recorded: %w", err)
	}
	if damaged != nil {
		return fmt.Errorf("the ledger could not be read and was begun anew: %w", damaged)
	}
	return nil
}

func (s *store) writeLedger(data []byte) (err error) {
	run, err := s.runDir()
	if err != nil {
		return err
	}
	const tmp = "." + ledgerName // no plugin's name
	f, err := run.Create(tmp)
	if err != nil {
		return err
	}
	if _, err = f.Write(data); err == nil {
		err = syncFile(f)
	}
	if err = errors.Join(err, closeFile(f)); err != nil {
		return err
	}
	if err := s.dir.Replace(run, tmp, ledgerName); err != nil {
		return err
	}
	return syncDir(s.dir)
}
