"""Rules of other papers, implemented as published, to be compared with."""
