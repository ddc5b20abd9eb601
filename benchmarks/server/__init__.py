"""The servers a client is measured against: a real nsqd, or the frame pump written for this."""
