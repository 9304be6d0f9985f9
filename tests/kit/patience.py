"""How long a test waits for what must come."""

#: Seconds after which what did not come is a failure. A busy machine is late, which fails no test;
#: a test that passes does not wait for it.
PATIENCE = 600.0
