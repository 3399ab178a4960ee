"""The registry in a SQL database: PostgreSQL, MySQL or MariaDB, Oracle."""
