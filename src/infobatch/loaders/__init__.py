"""What can be observed of the loader that iterates a sampler, whichever package it is from."""
