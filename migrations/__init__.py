"""Alembic migrations of the whole database: the tables of serving, feedback and online_rl."""
