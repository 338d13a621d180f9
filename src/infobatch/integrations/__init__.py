"""Trainers and libraries around torch, a file each; nothing is imported before its user asks for it."""
