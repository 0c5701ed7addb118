"""The demo: simulated users who talk to the service over HTTP only, and whose taste changes."""
