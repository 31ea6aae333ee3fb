"""The multi-process runtime: who runs where, and what they say to each other. Private to ``reading_services``.

==================  ====================================================================================
``messages``        everything that main and workers say to each other, as frozen dataclasses
``channel``         one two-way connection: frames over a socket, and an in-memory one for tests
``items``           a chunk's items <-> bytes
``graph_image``     the graph, pickled once, its large arrays shared by all processes
``remote_error``    an exception <-> bytes, keeping its type
``status_page``     a page of shared memory where a worker notes what it is doing, readable after its death
``arena``           shared memory in slots, where large buffers are written and read in place
``payloads``        items packed into a message and into slots of an arena, and opened again
``arrivals``        what a message of a worker becomes for its consumer
``parent``          how a worker notices that the main process is gone, and shows that it is alive
``worker``          the loop of a worker process
``dispatcher``      the loop of the dispatcher process
``dispatch_link``   the connections between workers and dispatcher
``ledger``          what main knows of each shard: what has arrived, what was used, what a restart must begin with
``recovery``        what to do after a death: start anew, when, or give up
``post_mortem``     what is said of a process that has died
``worker_pool``     all of these processes, and the one wait for what happens to them
``start_method``    how processes are started, and the forkserver's preload
``start_messages``  what workers and dispatcher are told at the beginning of an epoch
``whole_calls``     keeps an interrupt from cutting a call of the consumer in two
``process``         one worker process and its connection, from start to the last rung of the stop ladder
``supervisor``      owns all of these in the main process: starts, waits, restarts, stops
==================  ====================================================================================
"""

from __future__ import annotations

__all__: list[str] = []
