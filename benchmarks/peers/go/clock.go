package main

import (
	"syscall"
	"unsafe"
)

// monotonic is CLOCK_MONOTONIC in nanoseconds: Python's time.monotonic_ns in another process of this machine.
func monotonic() int64 {
	var now syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&now)), 0); errno != 0 {
		check(errno)
	}
	return now.Nano()
}
