"""The servers of the measurements: nsqd or the embedded broker, and a proxy that delays."""
