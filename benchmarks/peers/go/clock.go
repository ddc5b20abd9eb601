package main

import (
	"syscall"
	"unsafe"
)

// monotonic returns CLOCK_MONOTONIC in nanoseconds, which Python's time.monotonic_ns also returns.
func monotonic() int64 {
	var now syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&now)), 0); errno != 0 {
		check(errno)
	}
	return now.Nano()
}
