"""Decisions without I/O: the RDY of each connection, when to pause, and when to try again.

Each policy is a small object that takes events and returns decisions; the caller carries them out.  Nothing here
yields, sleeps or reads the machine's clock: time and chance are arguments, so that every history can be replayed.  The
policies know connections and nodes by hashable keys only.

====================  =====================================================  ===============================
module                decides                                                rules
====================  =====================================================  ===============================
``rdy``               the RDY of each connection                             RDY-1 to RDY-8, BACK-2 (probe)
``ready_state``       what one connection costs the budget, and its RDYs     RDY-1, RDY-2
``delivery``          how much of its RDY a connection uses at low rates
``backoff``           when failures stop the flow, and when to try again     BACK-1 to BACK-5
``attempts``          how long a failed message waits, when it is given up   MSG-1, MSG-4, CFG-4
``rate``              how many messages may come so as to keep a rate
``reconnect``         when nsqds are tried again, and nsqlookupds asked      CONN-3, CFG-3, DISC-4
``shunned``           which nsqds get nothing that another could take        PUB-4
``sequence``          what a dialect decides for messages in order           YZ-6
``rng``               the randomness a policy may ask for
====================  =====================================================  ===============================
"""
