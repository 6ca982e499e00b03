"""What every part of a server process shares: gates, memory, threads and deadlines."""
