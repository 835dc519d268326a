"""Tests of a method or a client-side rule: what every one of them must keep to, and what is wrong where it does not."""
