"""Experiments on real data: what the library claims, measured. Needs the extra ``infobatch[lab]``."""
