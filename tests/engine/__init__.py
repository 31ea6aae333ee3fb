"""Tests of decisions alone: nothing here is a process."""
