"""Real servers for tests: started on free ports of this machine, with their data in a directory of the test."""
