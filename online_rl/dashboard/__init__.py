"""The operations application at ``/``: health, metrics, admin routes, and the dashboard."""
