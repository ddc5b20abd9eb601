"""The dialect of Youzan's NSQ, which adds partitions with leaders, ordered topics, trace ids and headers to NSQ.

The code of each rule of ``tests/rules.txt``:

=============  ======================================================================
YZ-1           ``gnsq_lite.net.discovery``
YZ-2           ``lookup.lookup_path``, ``lookup.parse_layout``
YZ-3, YZ-4     ``commands``, ``dialect``
YZ-5           ``partitions``, ``router``
YZ-6, YZ-13    ``policy.ordered.OrderedPartition``, ``tail.to_tail``
YZ-7           ``errors.SubOrderIsMustError``
YZ-8, YZ-12    ``router.LeaderRouter``, ``partitions.should_reroute``
YZ-9           ``commands.publish``, ``messages.parse_trace_reply``
YZ-10          ``messages.YouzanMessage``
YZ-11          ``gnsq_lite.publish.nodes``: a connection for each partition
YZ-14          ``gnsq_lite.dialect.Dialect.check_server``
YZ-15, YZ-16   ``headers``, ``commands.publish``, ``options.YouzanOptions``
YZ-17          ``commands.StartOffset``
YZ-18          ``dialect.YouzanDialect.calls_for_lookup``, ``gnsq_lite.net.connection``
=============  ======================================================================

The rules hold for server 0.3.7-HA.1.13.0, and were tested on a cluster of two nodes.  Comments cite source files of
this server.
"""
