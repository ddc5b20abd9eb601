"""Decisions without I/O: RDY of each connection, backoff, retries and reconnects.

Each policy is a small object whose methods take events and return decisions; the caller executes the decisions.  No
policy switches greenlets, sleeps or reads the system's clock: the clock and the random numbers are arguments, so that
tests can replay any history.  The policies identify connections and nodes by hashable keys.

====================  =====================================================  ===============================
module                decides                                                rules
====================  =====================================================  ===============================
``rdy``               the RDY of each connection                             RDY-1 to RDY-8, BACK-2 (probe)
``delivery``          the part of its share that a connection uses as RDY
``backoff``           when failures pause the Reader, and when to probe      BACK-1 to BACK-5
``attempts``          requeue delays, and when a message is given up         MSG-1, MSG-4, CFG-4
``rate``              messages in flight that keep a rate limit
``reconnect``         when to reconnect, and when to poll nsqlookupds        CONN-3, CFG-3, DISC-4
``ordered``           when a message of an ordered partition is handled      YZ-6
====================  =====================================================  ===============================
"""
