"""Decisions without I/O: RDY of each connection, backoff, retries and reconnects.

The methods of a policy take events and return decisions, which the caller executes.  No policy switches greenlets,
sleeps or reads the system's clock.  The clock and the random numbers are arguments, so that tests can replay any
sequence of events.

====================  =====================================================  ===============================
module                decides                                                rules
====================  =====================================================  ===============================
``rdy``               the RDY of each connection                             RDY-1 to RDY-8, BACK-2 (probe)
``delivery``          the part of its share that a connection uses as RDY
``backoff``           when failures pause the Reader, and when to probe      BACK-1 to BACK-5
``attempts``          requeue delays, and when a message is given up         MSG-1, MSG-4, CFG-4
``rate``              how many messages in flight a rate limit allows
``reconnect``         when to reconnect, and when to poll nsqlookupds        CONN-3, CFG-3, DISC-4
``ordered``           when a message of an ordered partition is handled      YZ-6
====================  =====================================================  ===============================
"""
