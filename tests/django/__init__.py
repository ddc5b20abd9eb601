"""Tests of the Django app, in a project of its own."""
