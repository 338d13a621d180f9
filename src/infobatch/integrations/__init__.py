"""Integrations with trainers and libraries, one file each, imported only on demand."""
